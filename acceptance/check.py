"""What a check is: a promise, and a function that tries it on real processes and says what it saw."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

MEASURED_TIMES: Final = 3
"""How often a test run measures what a machine that stood still may have spoilt."""


class LateError(AssertionError):
    """What the clock says, or nodes say that were late themselves, is against a promise."""


async def at_best(measure: Callable[[], Awaitable[T]], times: int = MEASURED_TIMES) -> T:
    """What is measured, again after a `LateError`: a machine stands still now and then, a fault is there each time.

    Raises:
        LateError: each of `times` measurements was one.
    """
    for time in range(1, times):
        try:
            return await measure()
        except (LateError, BaseExceptionGroup) as error:
            if isinstance(error, BaseExceptionGroup) and error.split(LateError)[1] is not None:
                raise
            print(f"measured again after {time} of {times}: {error!r}")
    return await measure()


class SkippedError(Exception):
    """A check cannot be made here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of a promise to try: the whole of it, or enough for a test run."""

    is_full: bool

    def pick(self, full: int, quick: int) -> int:
        """The number that fits."""
        return full if self.is_full else quick

    @property
    def times(self) -> int:
        """How often to measure at most: once, or in a test run until a machine that stood still does not any more."""
        return self.pick(1, MEASURED_TIMES)

    def within(self, promised_s: float) -> float:
        """Seconds to wait: those of the promise, or in a test run, which a busy machine may make slow, a minute."""
        return promised_s if self.is_full else max(promised_s, 60.0)


@dataclass(frozen=True, slots=True)
class Check:
    """`run` returns one line of what it measured, or raises: AssertionError with what went wrong, SkippedError."""

    name: str
    promise: str
    run: Callable[[Scale], Awaitable[str]]
