"""Waiting times counted by class, for histograms. Pure; nanoseconds come in."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

NS = 1_000_000_000
"""Nanoseconds of a second."""
BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of the classes that waiting times are counted in."""


class Waits:
    """Waiting times by class, in the way of a Prometheus histogram."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_ns = 0

    def add(self, waited_ns: int) -> None:
        """One request waited this long."""
        self._counts[bisect_left(BOUNDS_S, waited_ns / NS)] += 1
        self._sum_ns += waited_ns

    def values(self, name: str) -> dict[str, float]:
        """`NAME_sum` in seconds, and `NAME_le_BOUND`: how many waited at most so long."""
        totals = accumulate(self._counts)
        bounds = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]
        counted = {f"{name}_le_{bound}": float(total) for bound, total in zip(bounds, totals, strict=True)}
        return {f"{name}_sum": self._sum_ns / NS, **counted}
