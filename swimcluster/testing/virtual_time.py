"""The clock of a run, and one heap of what happens next, in order of time and then of asking."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000


class VirtualTime:
    """Time that goes on when it is told to, from one action to the next. Nanoseconds since it began."""

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._sequence = 0

    def at(self, time_ns: int, action: Callable[..., object], *arguments: Any) -> None:
        """Call `action(*arguments)` at `time_ns`, or now when that has passed."""
        self._sequence += 1
        heapq.heappush(self._heap, (max(time_ns, self.now), self._sequence, action, arguments))

    def after(self, delay_ns: int, action: Callable[..., object], *arguments: Any) -> None:
        """Call `action(*arguments)` in `delay_ns`."""
        self.at(self.now + delay_ns, action, *arguments)

    def run_until(self, time_ns: int) -> None:
        """Let everything happen up to and including `time_ns`."""
        heap = self._heap
        while heap and heap[0][0] <= time_ns:
            self.now, _, action, arguments = heapq.heappop(heap)
            action(*arguments)
        self.now = max(self.now, time_ns)

    def run_for(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass."""
        self.run_until(self.now + round(seconds * SECOND))

    def run_while(self, going: Callable[[], bool], *, limit_s: float, every_s: float = 0.1) -> bool:
        """Run until `going()` is false, looked at each `every_s`; False when the limit came first."""
        end = self.now + round(limit_s * SECOND)
        while going():
            if self.now >= end:
                return False
            self.run_until(min(end, self.now + round(every_s * SECOND)))
        return True
