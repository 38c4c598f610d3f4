"""Which idle sequences leave the KV cache: when cells or ids are wanted, when they lie in the way, or have rested.

What leaves goes to host memory where that has room, otherwise it is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from saiserve.engines.llamacpp.cells import CellLedger
from saiserve.engines.llamacpp.host_tier import HostTier, Saved
from saiserve.engines.llamacpp.parking import in_the_way
from saiserve.engines.llamacpp.reuse import Held

PRESSED_TOKENS_MAX = 8192
"""Once this many were moved in one step, what must still go to make room is dropped instead."""


class Room:
    """Frees cells and sequence ids. `held`, `free` ids, `cells` and `counts` are the prefix cache's own; `discard` too."""

    def __init__(
        self,
        held: Mapping[int, Held],
        free: list[int],
        cells: CellLedger,
        host: HostTier,
        discard: Callable[[Held], None],
        *,
        cells_total: int,
        hot_cells_max: int,
        park_after_ns: int | None,
        counts: Counter[str],
    ) -> None:
        """`park_after_ns`: an idle sequence leaves after so long, and at once where it is in the way; None: neither."""
        self._held = held
        self._free = free
        self._cells = cells
        self._host = host
        self._discard = discard
        self._cells_total = cells_total
        self._hot_cells_max = hot_cells_max
        self._park_after_ns = park_after_ns
        self._counts = counts

    @property
    def cells(self) -> int:
        """Cells that nobody holds."""
        return self._cells_total - self._cells.used

    @property
    def has_moved(self) -> bool:
        """Whether this step already moved something between the tiers."""
        return self._host.moved_tokens > 0

    @property
    def has_moved_much(self) -> bool:
        """Whether this step moved as much as its running streams should wait for."""
        return self._host.moved_tokens >= self._host.tokens_per_move

    @property
    def has_chores(self) -> bool:
        """Whether `park_one` would do something in a fresh step, now or when something has rested long enough."""
        if not self._is_over_hot and self._park_after_ns is None:
            return False
        idle = (held for held in self._held.values() if held.is_idle)
        return any(self._is_over_hot or self._host.has_spare(held.ready) for held in idle)

    @property
    def _is_over_hot(self) -> bool:
        """Whether idle prefixes hold more cells, or sequence ids, than they should."""
        return self._cells.idle > self._hot_cells_max or not self._free

    # When something is wanted

    def make(self, now: int, cells: int, keep: Held | None = None) -> bool:
        """Free idle sequences, oldest first, until `cells` are free. False: what is left is not enough."""
        while self.cells < cells:
            victim = self._oldest_idle(keep, with_cells=True)
            if victim is None:
                return False
            self._evict(now, victim)
        return True

    def free_oldest(self, now: int) -> bool:
        """Free the oldest idle sequence, whatever the count says. False: there is none."""
        victim = self._oldest_idle(None, with_cells=False)
        if victim is None:
            return False
        self._evict(now, victim)
        return True

    def take_id(self, now: int, keep: Held | None) -> int | None:
        """A sequence id for a new sequence; None when all others run or are to be kept."""
        if not self._free:
            victim = self._oldest_idle(keep, with_cells=False)
            if victim is None:
                return None
            self._evict(now, victim)
        return self._free.pop()

    def _oldest_idle(self, keep: Held | None, *, with_cells: bool) -> Held | None:
        idle = [held for held in self._held.values() if held.is_idle and held is not keep]
        if with_cells:  # dropping one whose cells others share would free nothing
            idle = [held for held in idle if self._cells.unique(held.sequence)] or idle
        return min(idle, key=lambda held: (held.used_at, held.sequence), default=None)

    def _evict(self, now: int, held: Held) -> None:
        """Drop an idle sequence under pressure, saving it first if this step has not moved much yet."""
        pressed = self._host.moved_tokens >= PRESSED_TOKENS_MAX
        if pressed or self._host.save(now, held, held.ready) is not Saved.WHOLE:
            self._counts["idle_evictions"] += 1
        self._discard(held)

    # When nothing is wanted yet

    def park_one(self, now: int) -> None:
        """One move towards host memory if idle prefixes hold too much, or one has rested."""
        if self.has_moved:
            return
        victim = self._oldest_idle(None, with_cells=bool(self._free)) if self._is_over_hot else self._rested(now)
        if victim is not None:
            self._park(now, victim, self._host.tokens_per_move)

    def park_others(self, now: int, wanted: Collection[Held]) -> None:
        """Move idle prefixes but the `wanted` ones to host memory, half of what a step may move: restores want the rest."""
        if self._park_after_ns is None:
            return
        for held in in_the_way(self._held.values(), wanted):
            left = self._host.tokens_per_move // 2 - self._host.moved_tokens
            if left <= 0:
                return
            if self._host.has_spare(held.ready):
                self._park(now, held, left)

    def _park(self, now: int, held: Held, tokens_max: int) -> None:
        """Save at most so many tokens of an idle sequence; once all are saved, or there is no room, it goes."""
        saved = self._host.save(now, held, tokens_max)
        if saved is not Saved.PARTLY:
            self._counts["idle_evictions"] += saved is Saved.NO_ROOM
            self._discard(held)

    def _rested(self, now: int) -> Held | None:
        """An idle sequence to park though there is room: every cell of it slows each step (docs/engine.md)."""
        if self._park_after_ns is None:
            return None
        latest = now - self._park_after_ns
        for held in self._held.values():
            if held.is_idle and held.used_at <= latest and self._host.has_spare(held.ready):
                return held
        return None
