"""Settings of one member. Every field has a unit and a range; a bad one raises ConfigError before anything starts.

Three presets follow memberlist so that figures can be compared: `Config.lan`, `Config.wan`, `Config.local`.
The rules and formulas behind the numbers are in docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from swimcluster.address import Address, parse_address
from swimcluster.config_checks import KEYS_MAX, check_list, check_settings
from swimcluster.errors import ConfigError

NS_PER_S = 1_000_000_000

FRAME_OVERHEAD_BYTES = 44
"""Header (28 bytes) and MAC (16 bytes) of each datagram; docs/protocol.md, wire format."""


def _str_bytes(length: int) -> int:
    return length + (1 if length < 32 else 2 if length < 256 else 3)


def _bin_bytes(length: int) -> int:
    return length + (2 if length < 256 else 3 if length < 65536 else 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How one member behaves. Build it with `Config.lan`, `Config.wan` or `Config.local`.

    Times are seconds, sizes bytes. Fields marked *cluster-wide* must be equal on all members. The three presets take
    each address as text too (`bind="0.0.0.0:7946"`), and `state_dir` as text.
    """

    name: str
    """The member's name, unique in the cluster; 1 to `name_bytes_max` bytes of printable UTF-8."""
    advertise: Address | None = None
    """Where other members reach this one; None lets the driver derive it from where it is bound."""
    bind: Address | None = None
    """Where the driver listens; None means the advertised address. The machine does not use it."""
    seeds: tuple[Address, ...] = ()
    """Members to join through; host names stay names and are resolved at each attempt. Empty: a first node."""
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    """Shared secrets, 16 to 1024 bytes each, at most 4. The first signs, all verify. *Cluster-wide.*"""
    insecure: bool = False
    """Must be True to run without keys: then anyone who reaches the port can be a member."""
    cluster: str = "default"
    """Cluster name, 1 to 64 bytes; members of clusters with other names never mix. *Cluster-wide.*"""

    probe_interval_s: float = 1.0
    """Seconds between probes, 0.01 to 600; scaled by local health. SWIM §3.1 (the protocol period)."""
    probe_timeout_s: float = 0.5
    """Seconds to wait for a direct ack before asking relays; less than `probe_interval_s`."""
    indirect_probes: int = 3
    """Relays asked when the direct ping is not acknowledged, 0 to 16 (SWIM's k)."""
    exchange_probe: bool = True
    """Whether a missing direct ack also sends a ping as an exchange (memberlist's TCP ping)."""
    probe_order: str = "round_robin"
    """`round_robin` (SWIM §4.3, the default) or `random` (SWIM §3.1), which exists to measure the formula."""
    nacks: bool = True
    """Whether a relay says that it has heard nothing from the target (Lifeguard)."""
    nack_fraction: float = 0.8
    """Share of the probe timeout after which a relay says that it has heard nothing, 0.1 to 1."""

    suspicion_mult: float = 4.0
    """Minimum suspicion is this x max(1, log10 n) probe intervals (Lifeguard's alpha), 0 to 100; 0: dead at once."""
    suspicion_max_mult: float = 6.0
    """Maximum suspicion is this x the minimum (Lifeguard's beta), 1 to 100."""
    confirmations: int = 3
    """Independent accusers that bring suspicion down to its minimum (Lifeguard's K), 0 to 16, capped at n - 2."""
    local_health_max: int = 8
    """Highest local health score, 0 to 32; interval and timeout grow to (score + 1) times. 0 turns scaling off."""
    buddy: bool = True
    """Whether a ping to a suspect tells it of the suspicion first (Lifeguard's buddy system)."""
    hold_accusations: bool = True
    """Whether to hold new accusations while the last three distinct probes all failed (own blackout)."""

    gossip_interval_s: float = 0.2
    """Seconds between gossip packets, 0.01 to 600, or 0 for none: then news rides on probes only."""
    gossip_nodes: int = 3
    """Members told per gossip tick, 1 to 32."""
    gossip_to_dead_s: float = 30.0
    """Seconds for which a dead member is still gossiped to, so that it can refute; 0 to 3600."""
    retransmit_mult: int = 4
    """Each update is sent this x ceil(log10(n + 1)) times, 1 to 32 (SWIM's lambda)."""
    push_pull_interval_s: float = 30.0
    """Seconds between full state exchanges up to 32 members, more beyond; 1 to 3600, or 0 for none."""
    exchange_timeout_s: float = 10.0
    """Seconds one state exchange or user request may take, 0.1 to 120."""

    reconnect_interval_s: float = 10.0
    """Seconds between attempts to reach a random failed member, 1 to 3600, or 0 for none."""
    reconnect_for_s: float = 86_400.0
    """Seconds for which a failed member's address is kept for reconnecting, 0 to 30 days."""
    tombstone_s: float = 60.0
    """Least seconds a departed member's last state is kept, 1 to 86400; raised to three push/pull intervals."""
    seed_retry_min_s: float = 1.0
    """First delay between attempts to reach seeds while alone, 0.05 to 60; doubles with jitter."""
    seed_retry_max_s: float = 15.0
    """Longest delay between attempts to reach seeds while alone; at least the first, at most 3600."""
    seed_interval_s: float = 60.0
    """Seconds between exchanges with seeds that no live member stands for, 1 to 3600."""
    leave_transmits_max: int = 32
    """Live members told at once on leaving, 0 to 1024; gossip tells the others."""

    datagram_bytes_max: int = 1400
    """Budget of a datagram, 512 to 65000. *Cluster-wide.*"""
    name_bytes_max: int = 64
    """Longest member name, 1 to 200. *Cluster-wide.*"""
    host_bytes_max: int = 64
    """Longest host of an advertised address, 7 to 253. *Cluster-wide.*"""
    metadata_bytes_max: int = 512
    """Largest metadata, 0 to 32768. *Cluster-wide.*"""
    vitals_bytes_max: int = 128
    """Largest vitals, 0 to 1024. *Cluster-wide.*"""
    broadcast_bytes_max: int = 256
    """Largest user broadcast, 0 to 1024. *Cluster-wide.*"""
    exchange_bytes_max: int = 8 * 1024 * 1024
    """Largest exchange request or reply, 64 KiB to 64 MiB."""
    request_bytes_max: int = 65_536
    """Largest payload of a user request or its reply, at most a quarter of `exchange_bytes_max`."""
    members_max: int = 8192
    """Most members kept, 2 to 65536; more are refused and counted (`Statistics.dropped_full`)."""
    unverified_max: int = 1024
    """Most members waiting for a first ack, 1 to 65536; more are refused and counted."""
    broadcasts_max: int = 256
    """User broadcasts waiting to be spread, 1 to 65536; the most sent one makes room."""
    events_max: int = 4096
    """Events waiting to be taken, 16 to 1048576; the oldest go, and `EventsLost` says how many."""
    event_queue_max: int = 1024
    """Events one subscriber of the driver may be behind, 1 to 1048576; then it gets `EventsLost` and a snapshot."""
    leave_timeout_s: float = 5.0
    """Seconds the driver spends on leaving, 0 to 300."""
    state_dir: Path | None = None
    """Folder where the driver keeps the epoch and peer addresses; None keeps nothing."""
    source_rate_max: int = 2000
    """Datagrams and exchanges per second accepted from one host before any check, 10 to 1000000; 0 for no limit."""

    @classmethod
    def lan(
        cls,
        *,
        name: str,
        advertise: Address | str | None = None,
        seeds: Iterable[Address | str] = (),
        keys: Iterable[bytes] = (),
        cluster: str = "default",
        **overrides: Any,
    ) -> Config:
        """Return settings for one data centre: memberlist's LAN values, with K = 3 as in the Lifeguard paper."""
        return _build(cls, {}, overrides, name=name, advertise=advertise, seeds=seeds, keys=keys, cluster=cluster)

    @classmethod
    def wan(
        cls,
        *,
        name: str,
        advertise: Address | str | None = None,
        seeds: Iterable[Address | str] = (),
        keys: Iterable[bytes] = (),
        cluster: str = "default",
        **overrides: Any,
    ) -> Config:
        """Return settings for links of hundreds of milliseconds: memberlist's WAN values, K = 3."""
        return _build(cls, _WAN, overrides, name=name, advertise=advertise, seeds=seeds, keys=keys, cluster=cluster)

    @classmethod
    def local(
        cls,
        *,
        name: str,
        advertise: Address | str | None = None,
        seeds: Iterable[Address | str] = (),
        keys: Iterable[bytes] = (),
        cluster: str = "default",
        **overrides: Any,
    ) -> Config:
        """Return settings for processes on one machine: memberlist's Local values, K = 3 and three relays."""
        return _build(cls, _LOCAL, overrides, name=name, advertise=advertise, seeds=seeds, keys=keys, cluster=cluster)

    def with_advertise(self, advertise: Address) -> Config:
        """Return the same settings with another advertised address."""
        return replace(self, advertise=advertise)

    def __post_init__(self) -> None:
        check_settings(self)
        _check_budget(self)

    def ns(self, seconds: float) -> int:
        """Return seconds as whole nanoseconds."""
        return round(seconds * NS_PER_S)

    @property
    def envelope_bytes_max(self) -> int:
        """Bytes the sender's own part of a packet may take: name, address, life, vitals, message count."""
        name, host = _str_bytes(self.name_bytes_max), _str_bytes(self.host_bytes_max)
        sender = _bin_bytes(1 + name + host + 3 + 9 + 9)
        return 1 + sender + 9 + _bin_bytes(self.vitals_bytes_max) + 3

    @property
    def alive_bytes_max(self) -> int:
        """Bytes of the largest Alive message."""
        name, host = _str_bytes(self.name_bytes_max), _str_bytes(self.host_bytes_max)
        key_ids = _bin_bytes(4 * KEYS_MAX)
        return 2 + name + host + 3 + 9 + 10 + 9 + _bin_bytes(self.metadata_bytes_max) + key_ids

    @property
    def user_datagram_bytes_max(self) -> int:
        """Largest payload of `send`, in bytes."""
        return self.datagram_bytes_max - FRAME_OVERHEAD_BYTES - self.envelope_bytes_max - 6

    @property
    def worst_case_bytes(self) -> int:
        """Bytes of a ping, a suspicion and an Alive of the largest size in one datagram with its overhead."""
        name = _str_bytes(self.name_bytes_max)
        ping = 2 + 9 + name + 10
        suspect = 2 + name + 9 + 10 + 9 + name
        return FRAME_OVERHEAD_BYTES + self.envelope_bytes_max + ping + suspect + self.alive_bytes_max


_WAN: dict[str, Any] = {
    "probe_interval_s": 5.0,
    "probe_timeout_s": 3.0,
    "suspicion_mult": 6.0,
    "gossip_interval_s": 0.5,
    "gossip_nodes": 4,
    "gossip_to_dead_s": 60.0,
    "push_pull_interval_s": 60.0,
    "exchange_timeout_s": 30.0,
    "reconnect_interval_s": 30.0,
    "seed_retry_max_s": 60.0,
}
_LOCAL: dict[str, Any] = {
    "probe_timeout_s": 0.2,
    "suspicion_mult": 3.0,
    "gossip_interval_s": 0.1,
    "gossip_to_dead_s": 15.0,
    "retransmit_mult": 2,
    "push_pull_interval_s": 15.0,
    "exchange_timeout_s": 1.0,
    "reconnect_interval_s": 5.0,
    "seed_retry_min_s": 0.2,
    "seed_retry_max_s": 5.0,
    "seed_interval_s": 15.0,
}


def _address(value: Address | str) -> Address:
    return parse_address(value) if isinstance(value, str) else value


def _build(
    cls: type[Config],
    preset: dict[str, Any],
    overrides: dict[str, Any],
    *,
    name: str,
    advertise: Address | str | None,
    seeds: Iterable[Address | str],
    keys: Iterable[bytes],
    cluster: str,
) -> Config:
    known = {field.name for field in fields(cls)}
    for setting in overrides:
        if setting not in known:
            raise ConfigError(f"there is no setting {setting!r}: see swimcluster.Config for the names")
    check_list("seeds", "addresses", seeds)
    check_list("keys", "byte strings", keys)
    settings = {**preset, **overrides}
    if "bind" in settings:
        settings["bind"] = _address(settings["bind"])
    if isinstance(settings.get("state_dir"), str):
        settings["state_dir"] = Path(settings["state_dir"])
    return cls(
        name=name,
        advertise=None if advertise is None else _address(advertise),
        seeds=tuple(_address(seed) for seed in seeds),
        keys=tuple(keys),
        cluster=cluster,
        **settings,
    )


def _check_budget(config: Config) -> None:
    worst = config.worst_case_bytes
    if worst > config.datagram_bytes_max:
        raise ConfigError(
            f"a ping with a suspicion and the largest Alive needs {worst} bytes, over datagram_bytes_max = "
            f"{config.datagram_bytes_max}: lower metadata_bytes_max, vitals_bytes_max, name_bytes_max or host_bytes_max"
        )
    broadcast = _str_bytes(config.name_bytes_max) + 10 + 9 + _bin_bytes(config.broadcast_bytes_max) + 2
    if broadcast > (config.datagram_bytes_max - FRAME_OVERHEAD_BYTES - config.envelope_bytes_max):
        raise ConfigError("broadcast_bytes_max does not fit into one datagram: lower it")
