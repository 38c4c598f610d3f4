"""When the snapshot of one member is read and written; `snapshot.py` knows how.

The disk may be missing, full, slow or read-only: a fault is remembered and told, and the member goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import quote

import trio
from blake3 import blake3

from swimcluster.address import Address
from swimcluster.codec import EPOCH_MAX
from swimcluster.member import MemberState
from swimcluster.snapshot import KnownAddress, Snapshot, load_snapshot, replace_file, store_snapshot
from swimcluster.swim import Swim

WRITE_INTERVAL_S = 5.0
"""Least time between two writes."""
FINAL_WRITE_S = 2.0
"""Longest wait for the last write when the cluster closes."""
READABLE_NAME_CHARACTERS = 80


def snapshot_path(state_dir: Path, cluster: str, name: str) -> Path:
    """Return the file of one member of one cluster; any name makes a legal and distinct file name."""
    digest = blake3(f"{cluster}\0{name}".encode()).hexdigest(length=6)
    return state_dir / f"{quote(name, safe='')[:READABLE_NAME_CHARACTERS]}-{digest}.swim"


def next_epoch(previous: int, wall_clock_ms: int) -> int:
    """Return a life number above every earlier one of this name, as far as this machine can tell.

    The wall clock is a first guess, read once: where it went back, the remembered epoch decides.
    """
    remembered = previous if 0 <= previous < EPOCH_MAX else 0
    return max(remembered + 1, wall_clock_ms)


def wall_clock_ms() -> int:
    """Milliseconds of the wall clock; used for the first epoch and nowhere else."""
    return time.time_ns() // 1_000_000


class StateFile:
    """Keeps one member's snapshot on disk."""

    def __init__(self, path: Path, on_fault: Callable[[str], None]) -> None:
        self._path = path
        self._on_fault = on_fault
        self._remembered: tuple[KnownAddress, ...] = ()
        self._stored: Snapshot | None = None
        self._fault = ""
        self._wanted = 0
        self._is_closing = False
        self._putting = threading.Lock()

    async def load(self, own_address: Address | None) -> Snapshot:
        """Read the last snapshot without `own_address`; empty when there is none or it cannot be read, which is told."""
        snapshot, fault = await trio.to_thread.run_sync(load_snapshot, self._path, abandon_on_cancel=True)
        self._tell(fault)
        self._remembered = tuple(known for known in snapshot.addresses if known.address != own_address)
        return replace(snapshot, addresses=self._remembered)

    @trio.lowlevel.enable_ki_protection
    async def keep(self, machine: Swim) -> None:
        """Write whenever something changed, at most every `WRITE_INTERVAL_S`, until cancelled or closing.

        A task that comes to run only when the last write is under way would give that one up for its own.
        """
        while not self._is_closing:
            await self._store(self._snapshot(machine), "new")
            await trio.sleep(WRITE_INTERVAL_S)

    async def store_last(self, machine: Swim) -> None:
        """Write once more on closing, whatever the caller's cancellation, within `FINAL_WRITE_S`."""
        self._is_closing = True
        with trio.CancelScope(shield=True, deadline=trio.current_time() + FINAL_WRITE_S):
            # Another suffix than the periodic write's, which may still be under way in its thread.
            await self._store(self._snapshot(machine), "last")

    def _snapshot(self, machine: Swim) -> Snapshot:
        """Return the machine's epoch and everybody it knows but itself, the living first.

        Who left is not worth dialling. Until somebody was met in this life, the addresses of the last one stay.
        """
        live = [KnownAddress(m.name, m.address) for m in machine.members() if not m.is_local]
        dead = [KnownAddress(m.name, m.address, failed=True) for m in machine.departed() if m.state is MemberState.DEAD]
        return Snapshot(machine.local.epoch, tuple(live + dead) or self._remembered)

    async def _store(self, snapshot: Snapshot, suffix: str) -> None:
        if snapshot == self._stored:
            return
        self._stored = None
        self._wanted = number = self._wanted + 1
        put = partial(self._put, number)
        try:
            fault = await trio.to_thread.run_sync(
                store_snapshot, self._path, snapshot, suffix, put, abandon_on_cancel=True
            )
        except trio.Cancelled:
            if number == self._wanted:
                self._wanted += 1
            raise
        self._stored = None if fault else snapshot
        self._tell(fault)

    def _put(self, number: int, beside: Path, path: Path) -> bool:
        """Rename unless the write was given up: its thread may wake long after a newer one is on disk."""
        with self._putting:
            return number == self._wanted and replace_file(beside, path)

    def _tell(self, fault: str) -> None:
        """Report a fault once, not at every attempt, until it changes."""
        if fault and fault != self._fault:
            self._on_fault(fault)
        self._fault = fault
