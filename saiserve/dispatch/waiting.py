"""Standing in line at the entry node while every place is busy: first come, first served, bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from saiserve import limits
from saiserve.errors import ApiError, ErrorKind


class WaitingRoom:
    """One line per name; only its front asks for places, so that a freed lane is not fought over."""

    def __init__(self, most: int = limits.ENTRY_QUEUE_MAX) -> None:
        self._lines: dict[str, deque[trio.Event]] = {}
        self._most = most

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def is_empty(self, name: str) -> bool:
        """Whether nobody waits in this line."""
        return name not in self._lines

    @contextmanager
    def place(self, name: str) -> Iterator[trio.Event]:
        """Join the end of a line; the event is set when the place is at its front. Leaving the context leaves the line.

        Raises:
            ApiError: the waiting room is full.
        """
        if len(self) >= self._most:
            raise ApiError(ErrorKind.BUSY, "too many requests are waiting here; try again later", retry_after_s=5.0)
        line = self._lines.setdefault(name, deque())
        turn = trio.Event()
        line.append(turn)
        line[0].set()
        try:
            yield turn
        finally:
            line.remove(turn)
            if line:
                line[0].set()
            else:
                del self._lines[name]
