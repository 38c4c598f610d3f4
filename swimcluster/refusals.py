"""Says that a node of another cluster, key or version was met: rarely, whoever dials and however often."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swimcluster.address import Address
from swimcluster.events import PeerRefused
from swimcluster.mac import VERSION, Hello

if TYPE_CHECKING:
    from swimcluster.core import Core

QUIET_S = 60.0
"""A refusal by the same peer is told once in this time."""
TOLD_MAX = 64
"""Refusals told within `QUIET_S`, whatever their number; so many lines a minute at most."""


class Refusals:
    """Emits `PeerRefused`, each at most once per `QUIET_S`, and at most `TOLD_MAX` in that time."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._told: dict[tuple[str, int, str], int] = {}

    def __len__(self) -> int:
        return len(self._told)

    def by_seed(self, now: int, seed: Address, hello: Hello) -> None:
        """An exchange with `seed` was refused."""
        self._tell(now, (seed.host, seed.port, hello.cluster), seed, hello)

    def of_caller(self, now: int, source: Address | None, hello: Hello) -> None:
        """An incoming exchange was refused. Its port is another one each time, so its host alone names it."""
        self._tell(now, ("" if source is None else source.host, 0, hello.cluster), source, hello)

    def _tell(self, now: int, key: tuple[str, int, str], address: Address | None, hello: Hello) -> None:
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
        self._core.emit(PeerRefused(address, self._difference(hello)))

    def _difference(self, hello: Hello) -> str:
        core = self._core
        if hello.version != VERSION:
            return f"it speaks protocol version {hello.version}, this node {VERSION}: run the same release on both"
        if hello.cluster != core.config.cluster:
            return f"it is of cluster {hello.cluster!r}, this node of {core.config.cluster!r}: set the same name"
        theirs = ", ".join(key_id.hex() for key_id in hello.key_ids)
        ours = ", ".join(key_id.hex() for key_id in core.keyring.ids())
        return f"its key ids are {theirs}, this node's {ours}: give both one key in common that the sender signs with"
