"""Says that a node of another cluster, key or version was met, or of none: rarely, whoever dials and however often."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from swimcluster.address import Address
from swimcluster.events import PeerRefused
from swimcluster.mac import VERSION, Hello

if TYPE_CHECKING:
    from swimcluster.core import Core

QUIET_S = 60.0
"""A refusal by the same peer is told once in this time."""
TOLD_MAX = 64
"""Refusals told within `QUIET_S`, whatever their number; so many lines a minute at most."""


class Difference(NamedTuple):
    """What two nodes do not have in common: the statistic that counts it, and a sentence with the mend."""

    counter: str
    reason: str


class Refusals:
    """Emits `PeerRefused`, each at most once per `QUIET_S`, and at most `TOLD_MAX` in that time."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._told: dict[tuple[str, int, str], int] = {}

    def __len__(self) -> int:
        return len(self._told)

    def by_seed(self, now: int, seed: Address, hello: Hello) -> str:
        """An exchange with `seed` was refused; returns the statistic that counts why."""
        counter, reason = self._difference(hello)
        self._core.joiner.refused(seed)
        self._tell(now, (seed.host, seed.port, hello.cluster), seed, reason)
        return counter

    def by_stranger(self, now: int, seed: Address, reason: str) -> None:
        """Who listens at `seed` is no member of any cluster, as the carrier found out and says."""
        self._core.joiner.refused(seed)
        self._tell(now, (seed.host, seed.port, ""), seed, reason)

    def of_caller(self, now: int, source: Address | None, hello: Hello) -> None:
        """An incoming exchange was refused. Its port is another one each time, so its host alone names it."""
        host, reason = "" if source is None else source.host, self._difference(hello).reason
        self._tell(now, (host, 0, hello.cluster), source, reason)

    def _tell(self, now: int, key: tuple[str, int, str], address: Address | None, reason: str) -> None:
        quiet_since = now - self._core.config.ns(QUIET_S)
        told_at = self._told.get(key)
        if told_at is not None and told_at > quiet_since:
            return
        self._told.pop(key, None)
        if len(self._told) >= TOLD_MAX:
            oldest = next(iter(self._told))  # They are kept in the order of their times.
            if self._told[oldest] > quiet_since:
                return
            del self._told[oldest]
        self._told[key] = now
        self._core.emit(PeerRefused(address, reason))

    def _difference(self, hello: Hello) -> Difference:
        core = self._core
        if hello.version != VERSION:
            words = f"it speaks protocol version {hello.version}, this node {VERSION}: run the same release on both"
            return Difference("dropped_version", words)
        if hello.cluster != core.config.cluster:
            words = f"it is of cluster {hello.cluster!r}, this node of {core.config.cluster!r}: set the same name"
            return Difference("dropped_cluster", words)
        theirs, ours = (", ".join(key_id.hex() for key_id in ids) for ids in (hello.key_ids, core.keyring.ids()))
        mend = "give both one secret in common that the sender signs with"
        return Difference("dropped_key", f"its key ids are {theirs}, this node's {ours}: {mend}")
