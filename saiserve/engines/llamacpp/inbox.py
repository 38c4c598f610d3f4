"""Messages that wait for the engine's loop, and how many of them a step may be held up for.

Reading a long prompt takes tens of milliseconds, in which no stream gets a token. While there is something to compute,
messages therefore get a share of the time and no more; cancels, which cost nothing, are never kept waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from saiserve.engines.messages import Cancel, Count, Embed, Generate

SHARE = 0.25
"""Of the time, for messages while streams run: thirty counts of 35 KB take a second of work, and so about four."""
BURST_NS = 20_000_000
"""Time for messages in a row, before the last of them begins."""
WAITING_MAX = 256
"""Messages kept; with more than these the streams must wait."""

Message = Generate | Cancel | Count | Embed


class Handles(Protocol):
    """The worker."""

    @property
    def has_work(self) -> bool:
        """Whether there is something to compute."""
        ...

    def handle(self, message: Message, now: int) -> None:
        """Take one message."""
        ...


class Inbox:
    """A bucket of time that fills at `SHARE`. Requests for answers and vectors come before counts, each in order."""

    def __init__(self) -> None:
        self._cancels: deque[Cancel] = deque()
        self._requests: deque[Generate | Embed] = deque()
        self._counts: deque[Count] = deque()
        self._left_ns = float(BURST_NS)
        self._filled_at = 0

    def __len__(self) -> int:
        return len(self._requests) + len(self._counts)

    def add(self, messages: Iterable[object]) -> None:
        """Take in what came; other kinds of messages are not for the worker and are dropped."""
        for message in messages:
            match message:
                case Cancel():
                    self._forget(message.id)
                    self._cancels.append(message)
                case Count():
                    self._counts.append(message)
                case Generate() | Embed():
                    self._requests.append(message)
                case _:
                    pass

    def hand_over(self, worker: Handles, clock: Callable[[], int]) -> None:
        """Give the worker what may be handled before the next step.

        Args:
            clock: the time in nanoseconds.
        """
        started = clock()
        while (message := self._next(worker, started)) is not None:
            worker.handle(message, started)
            ended = clock()
            self._left_ns -= ended - started
            self._filled_at = started = ended

    def _next(self, worker: Handles, now: int) -> Message | None:
        if self._cancels:
            return self._cancels.popleft()
        waiting: deque[Generate | Embed] | deque[Count] = self._requests or self._counts
        self._left_ns = min(BURST_NS, self._left_ns + SHARE / (1 - SHARE) * (now - self._filled_at))
        self._filled_at = now
        may = self._left_ns > 0 or not worker.has_work or len(self) > WAITING_MAX
        return waiting.popleft() if waiting and may else None

    def _forget(self, request_id: str) -> None:
        """Drop a request that is cancelled before it was handled."""
        self._requests = deque(one for one in self._requests if one.id != request_id)
        self._counts = deque(one for one in self._counts if one.id != request_id)
