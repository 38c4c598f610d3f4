"""A token bucket per source host, asked before anything else is done with its bytes."""

from __future__ import annotations

from swimcluster.config import NS_PER_S

SOURCES_MAX = 4096
BURST_S = 1.0
"""How many seconds' worth a quiet source may send at once."""


class SourceLimiter:
    """Admits at most `rate` inputs a second per host. Sources are bounded: the longest known one makes room."""

    def __init__(self, rate: int) -> None:
        self._cost = NS_PER_S // rate if rate else 0
        self._burst = int(BURST_S * NS_PER_S)
        self._empty_at: dict[str, int] = {}

    def admits(self, now: int, host: str) -> bool:
        """Return whether one more input of this host is within its rate, and charge it.

        The bucket is kept as the time at which it would be empty of debt (the generic cell rate algorithm).
        """
        if not self._cost:
            return True
        debt_until = max(self._empty_at.get(host, 0), now)
        if debt_until - now > self._burst:
            return False
        if host not in self._empty_at and len(self._empty_at) >= SOURCES_MAX:
            del self._empty_at[next(iter(self._empty_at))]
        self._empty_at[host] = debt_until + self._cost
        return True
