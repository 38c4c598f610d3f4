"""Deadlines of one machine: a heap of (time, order, timer). Any lateness is fine; equal times fire in order of setting."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Timer:
    """One deadline; `cancel` makes it a no-op."""

    __slots__ = ("arguments", "callback")

    def __init__(self, callback: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.callback: Callable[..., None] | None = callback
        self.arguments = arguments

    def cancel(self) -> None:
        """Forget the callback; the heap drops the entry when its time comes."""
        self.callback = None
        self.arguments = ()


class Timers:
    """All deadlines; callbacks are called as `callback(now, *arguments)`."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, at: int, callback: Callable[..., None], *arguments: Any) -> Timer:
        """Call `callback(now, *arguments)` at the first `advance` not before `at`."""
        timer = Timer(callback, arguments)
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, timer))
        return timer

    def next_at(self) -> int | None:
        """Return the earliest deadline, or None."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def run(self, now: int) -> None:
        """Fire all that is due, earliest first; what they set for `now` or before fires too."""
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            callback = timer.callback
            if callback is not None:
                timer.callback = None
                callback(now, *timer.arguments)

    def postpone(self, gap: int) -> None:
        """Move every deadline by the same gap; their order stays."""
        self._heap = [(at + gap, order, timer) for at, order, timer in self._heap]

    def clear(self) -> None:
        """Forget everything."""
        self._heap.clear()
