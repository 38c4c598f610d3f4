"""Lanes of the simulated engine and the queue for them."""

from __future__ import annotations

import heapq
import itertools

import trio


class Turn:
    """One request's place: waiting, on a lane, or gone."""

    def __init__(self) -> None:
        self.has_lane = False
        self.is_gone = False
        self.called = trio.Event()


class Lanes:
    """Lanes and the queue for them: higher priority first, then first come."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._count = count
        self._queue: list[tuple[int, int, Turn]] = []
        self._order = itertools.count()

    @property
    def busy(self) -> int:
        """Lanes in use."""
        return self._count - self._free

    @property
    def is_full(self) -> bool:
        """Whether no lane is free."""
        return self._free == 0

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return sum(not turn.is_gone for _, _, turn in self._queue)

    def enter(self, turn: Turn, priority: int) -> None:
        """Take a lane or a place in the queue; `turn.called` is set once it has a lane."""
        heapq.heappush(self._queue, (-priority, next(self._order), turn))
        self._call()

    def leave(self, turn: Turn) -> None:
        """Give the lane or the place back; safe to say twice."""
        if turn.has_lane:
            turn.has_lane = False
            self._free += 1
        turn.is_gone = True
        self._call()

    def _call(self) -> None:
        while self._queue and (self._free or self._queue[0][2].is_gone):
            turn = heapq.heappop(self._queue)[2]
            if not turn.is_gone:
                self._free -= 1
                turn.has_lane = True
                turn.called.set()
