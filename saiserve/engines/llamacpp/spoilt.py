"""What an output that is no number leads to: who is computed again, who fails, and as whose fault (decision 0160).

Adapters under suspicion (`suspects`) are those of running jobs that may have left NaN in the cache; `scheduler.py` knows.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple, Protocol

from saiserve.engines.llamacpp.adapters import MIX
from saiserve.engines.messages import FailureKind

SPOILT_MAX = 8
"""Requests in a row whose output is no number, without adapters and on a clean cache: then it is the process that is broken.

With many lanes more: one request may spoil the cache for all that are drawn before it, and for vectors.
"""

FORGIVEN_AFTER = 256
"""Good draws after which a request whose output was no number may be tried again once more: a clear is dear to all."""


class CacheSpoiltError(Exception):
    """Nobody's output is a number, and a clean cache did not help."""


class Tried(Protocol):
    """A request being computed."""

    probation: int
    """Good draws still due since it was tried again on a clean cache; 0: it may be tried again."""


class Verdict(NamedTuple):
    """How a request fails."""

    detail: str
    kind: FailureKind


def verdict(detail: str, mix: str, suspects: Set[str]) -> Verdict:
    """The request's own fault only where its own scales are the only ones under suspicion; else it is tried elsewhere."""
    if mix.startswith(MIX) and suspects <= {mix}:
        return Verdict(f"{detail} with adapters at these scales (lora): use smaller ones", FailureKind.BAD_REQUEST)
    return Verdict(detail, FailureKind.INTERNAL)


class SpoiltCache:
    """Whether the cache is to be cleared, and what failures say about the process."""

    def __init__(self, *, lanes: int) -> None:
        self._failures_max = max(SPOILT_MAX, lanes + 2)
        self.is_spoilt = False
        """What the cache holds is no number somewhere: nothing is computed on it before it is cleared."""
        self._is_explained = False
        self._in_a_row = 0
        """Requests that count against `_failures_max`."""

    def is_number(self) -> None:
        """An output was one."""
        self._in_a_row = 0

    def judge(self, request: Tried, detail: str, mix: str, suspects: Set[str]) -> Verdict | None:
        """How a request fails whose output, computed with `mix`, is no number; None: it is tried again.

        Without adapters it is tried again as long as others are under suspicion, which has its limit: `RESTARTS_MAX`.
        """
        self.is_spoilt = True
        if suspects and not mix:
            return None
        if not request.probation:
            request.probation = FORGIVEN_AFTER
            return None
        self._is_explained = True
        self._in_a_row += not mix
        return verdict(detail, mix, suspects)

    def clear(self) -> bool:
        """The cache is cleared now; whether a request that failed explains why.

        Raises:
            CacheSpoiltError: that has not helped before.
        """
        if self._in_a_row >= self._failures_max:
            raise CacheSpoiltError(f"the output of {self._in_a_row} requests in a row was not a number")
        is_explained = self._is_explained
        self.is_spoilt = self._is_explained = False
        return is_explained
