"""Reports that a member is said to be where another process answers: a wrong advertised address, told to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swimcluster.address import Address
from swimcluster.events import AddressConflict

if TYPE_CHECKING:
    from swimcluster.core import Core

QUIET_S = 60.0
"""The same conflict is reported again after this long at the earliest."""
TOLD_MAX = 256
"""Conflicts remembered as told; the oldest makes room."""


class AddressConflicts:
    """Emits `AddressConflict`, each at most once per `QUIET_S`. Changes no view: who answers has the address."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._told: dict[tuple[str, Address, str], int] = {}

    def tell(self, now: int, name: str, address: Address, holder: str) -> None:
        """Report that `holder` answers at the address `name` advertises; an empty holder is somebody unknown."""
        key = (name, address, holder)
        told_at = self._told.pop(key, None)
        if told_at is not None and now - told_at < self._core.config.ns(QUIET_S):
            self._told[key] = told_at
            return
        if len(self._told) >= TOLD_MAX:
            del self._told[next(iter(self._told))]
        self._told[key] = now
        self._core.emit(AddressConflict(name, address, holder))
