"""What a configuration must satisfy: types, ranges, names, addresses, keys, and relations between settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING

from swimcluster.address import Address
from swimcluster.errors import ConfigError

if TYPE_CHECKING:
    from swimcluster.config import Config

KEYS_MAX = 4
"""Keys a node may hold at once: one in use, one coming, one going, one spare."""
KEY_BYTES_MIN = 16
KEY_BYTES_MAX = 1024
CLUSTER_BYTES_MAX = 64

RANGES: dict[str, tuple[float, float]] = {
    "probe_interval_s": (0.01, 600),
    "probe_timeout_s": (0.001, 600),
    "indirect_probes": (0, 16),
    "nack_fraction": (0.1, 1),
    "suspicion_mult": (0, 100),
    "suspicion_max_mult": (1, 100),
    "confirmations": (0, 16),
    "local_health_max": (0, 32),
    "gossip_interval_s": (0.01, 600),
    "gossip_nodes": (1, 32),
    "gossip_to_dead_s": (0, 3600),
    "retransmit_mult": (1, 32),
    "push_pull_interval_s": (1, 3600),
    "exchange_timeout_s": (0.1, 120),
    "reconnect_interval_s": (1, 3600),
    "reconnect_for_s": (0, 30 * 86_400),
    "tombstone_s": (1, 86_400),
    "seed_retry_min_s": (0.05, 60),
    "seed_retry_max_s": (0.05, 3600),
    "seed_interval_s": (1, 3600),
    "leave_transmits_max": (0, 1024),
    "datagram_bytes_max": (512, 65_000),
    "name_bytes_max": (1, 200),
    "host_bytes_max": (7, 253),
    "metadata_bytes_max": (0, 32_768),
    "vitals_bytes_max": (0, 1024),
    "broadcast_bytes_max": (0, 1024),
    "exchange_bytes_max": (65_536, 64 * 1024 * 1024),
    "request_bytes_max": (0, 16 * 1024 * 1024),
    "members_max": (2, 65_536),
    "unverified_max": (1, 65_536),
    "broadcasts_max": (1, 65_536),
    "events_max": (16, 1_048_576),
    "event_queue_max": (1, 1_048_576),
    "leave_timeout_s": (0, 300),
    "source_rate_max": (10, 1_000_000),
}
_ZERO_TURNS_OFF = frozenset({"gossip_interval_s", "push_pull_interval_s", "reconnect_interval_s", "source_rate_max"})

_SWITCH: tuple[type, str] = (bool, "True or False")
KINDS: dict[str, tuple[type | UnionType, str]] = {
    "name": (str, "text"),
    "cluster": (str, "text"),
    "probe_order": (str, "text"),
    "advertise": (Address | None, "an Address"),
    "bind": (Address | None, "an Address"),
    "seeds": (tuple, "a tuple of Address"),
    "keys": (tuple, "a tuple of byte strings"),
    "state_dir": (Path | None, "a pathlib.Path"),
    "insecure": _SWITCH,
    "exchange_probe": _SWITCH,
    "nacks": _SWITCH,
    "buddy": _SWITCH,
    "hold_accusations": _SWITCH,
}
"""Settings that are no numbers, with their type as Python and a person call it."""


def check_settings(config: Config) -> None:
    """Raise ConfigError when a setting cannot be used; types first, as the other checks rely on them."""
    check_kinds(config)
    check_ranges(config)
    check_identity(config)
    check_keys(config)
    check_relations(config)


def check_kinds(config: Config) -> None:
    """Raise ConfigError when a setting that is no number has the wrong type. The message never shows the value."""
    for setting, (kind, words) in KINDS.items():
        value = getattr(config, setting)
        if not isinstance(value, kind):
            raise ConfigError(f"{setting} must be {words}, not {type(value).__name__}")


def check_ranges(config: Config) -> None:
    """Raise ConfigError when a number is out of its range."""
    for setting, (low, high) in RANGES.items():
        value = getattr(config, setting)
        whole = setting.endswith(("_max", "_nodes", "_probes", "confirmations", "retransmit_mult"))
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise ConfigError(f"{setting} must be a {'whole ' if whole else ''}number, not {value!r}")
        if value == 0 and setting in _ZERO_TURNS_OFF:
            continue
        if not (math.isfinite(value) and low <= value <= high):
            raise ConfigError(f"{setting} is {value}: it must be from {low} to {high}")


def check_identity(config: Config) -> None:
    """Raise ConfigError when name, cluster, address or seeds cannot be used."""
    name = config.name
    if not name or not name.isprintable() or len(name.encode(errors="replace")) > config.name_bytes_max:
        raise ConfigError(f"the name {name!r} must be 1 to {config.name_bytes_max} bytes of printable text")
    if not 1 <= len(config.cluster.encode(errors="replace")) <= CLUSTER_BYTES_MAX:
        raise ConfigError(f"the cluster name must be 1 to {CLUSTER_BYTES_MAX} bytes")
    if any("\ud800" <= character <= "\udfff" for character in config.cluster):
        raise ConfigError(f"the cluster name {config.cluster!r} has bytes in it that are no UTF-8")
    if config.advertise is not None:
        check_advertise(config.advertise, config.host_bytes_max)
    if config.bind is not None:
        check_address("the address to bind", config.bind)
    check_seeds(config.seeds)


def check_address(what: str, address: Address) -> None:
    """Raise ConfigError when this is not what `parse_address` makes: text for the host, a number for the port."""
    if not isinstance(address, Address):
        raise ConfigError(f"{what} must be an Address, or text as host:port, not {type(address).__name__}")
    is_number = isinstance(address.port, int) and not isinstance(address.port, bool)
    if not (isinstance(address.host, str) and is_number and 0 <= address.port <= 65535):
        raise ConfigError(f"{what} is {address!r}: the host must be text, the port a number from 0 to 65535")


def check_list(setting: str, of: str, given: object) -> None:
    """Raise ConfigError for a lone text or byte string: it can be iterated, and would be taken to pieces."""
    if isinstance(given, (bytes, str)) or not isinstance(given, Iterable):
        raise ConfigError(f"{setting} is a list of {of}: write {setting}=[...]")


def check_seeds(seeds: Sequence[Address]) -> None:
    """Raise ConfigError when one of these is not an address that can be connected to."""
    for seed in seeds:
        check_address("a seed", seed)
        if seed.is_unspecified:
            raise ConfigError(f"the seed {seed} cannot be connected to: give a host and a port other than 0")


def check_advertise(address: Address, host_bytes_max: int) -> None:
    """Raise ConfigError when nobody could connect to this address or it is too long to be told."""
    check_address("the advertised address", address)
    if address.is_unspecified:
        raise ConfigError(f"{address} cannot be advertised: nobody can connect to it; set a routable host and port")
    if not address.host.isprintable() or " " in address.host:
        raise ConfigError(f"the advertised host {address.host!r} must be printable text without spaces")
    if len(address.host.encode()) > host_bytes_max:
        raise ConfigError(f"the advertised host is over {host_bytes_max} bytes: advertise an IP address instead")


def check_keys(config: Config) -> None:
    """Raise ConfigError when the keys cannot be used, or are missing."""
    if not config.keys and not config.insecure:
        raise ConfigError("no keys: give keys=[secret], or insecure=True to let anyone in")
    if config.keys and config.insecure:
        raise ConfigError("insecure=True contradicts keys: leave one of them out")
    if len(config.keys) > KEYS_MAX:
        raise ConfigError(f"{len(config.keys)} keys: at most {KEYS_MAX}")
    for key in config.keys:
        check_key(key)
    if len(set(config.keys)) != len(config.keys):
        raise ConfigError("the same key is given twice")


def check_key(key: bytes) -> None:
    """Raise ConfigError when a key is not 16 to 1024 bytes. The message never shows the key."""
    if not isinstance(key, bytes):
        raise ConfigError("a key must be bytes")
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise ConfigError(f"a key of {len(key)} bytes: it must be {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes long")


def check_key_id(key_id: bytes) -> None:
    """Raise ConfigError when this cannot be the id of a key."""
    if not isinstance(key_id, bytes):
        raise ConfigError("a key id must be bytes, as `install` returned it")


def check_relations(config: Config) -> None:
    """Raise ConfigError when two settings contradict each other."""
    if config.probe_timeout_s >= config.probe_interval_s:
        raise ConfigError("probe_timeout_s must be less than probe_interval_s, or no time is left for relays")
    if config.probe_order not in {"round_robin", "random"}:
        raise ConfigError(f"probe_order is {config.probe_order!r}: it must be 'round_robin' or 'random'")
    if config.seed_retry_max_s < config.seed_retry_min_s:
        raise ConfigError("seed_retry_max_s must not be less than seed_retry_min_s")
    if config.request_bytes_max > config.exchange_bytes_max // 4:
        raise ConfigError("request_bytes_max must be at most a quarter of exchange_bytes_max")
