"""What a check is: a promise, and a function that tries it on real processes and says what it saw."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


class SkippedError(Exception):
    """A check cannot be made here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of a promise to try: the whole of it, or enough for a test run."""

    is_full: bool

    def pick(self, full: int, quick: int) -> int:
        """The number that fits."""
        return full if self.is_full else quick

    def within(self, promised_s: float) -> float:
        """Seconds to wait: those of the promise, or in a test run, which a busy machine may make slow, a minute."""
        return promised_s if self.is_full else max(promised_s, 60.0)


@dataclass(frozen=True, slots=True)
class Check:
    """`run` returns one line of what it measured, or raises: AssertionError with what went wrong, SkippedError."""

    name: str
    promise: str
    run: Callable[[Scale], Awaitable[str]]
