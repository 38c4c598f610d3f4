"""Where an engine's time went: steps and their parts, and how long requests waited. Pure; nanoseconds come in."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

NS = 1_000_000_000
BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper ends of the classes that waiting times are counted in."""
BATCH_WEIGHT = 0.1
"""Share of the newest step in the mean batch size."""


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


class Timings:
    """Totals since the engine started.

    A step lasts from the end of the one before, if there was one just before it, so that reading and writing messages
    in between are counted. What is not llama.cpp's in it is ours, or other programs' that were woken by what was sent:
    `python_seconds` is what the thread itself computed outside llama.cpp.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.queued = Waits()
        self.first_token = Waits()
        self._step_ns = 0
        self._llama_ns = 0
        self._sampling_ns = 0
        self._python_ns = 0
        self._batch = 0.0
        self._ended_at = 0

    def step(
        self, *, started_at: int, ended_at: int, llama_ns: int, sampling_ns: int, python_ns: int, rows: int
    ) -> None:
        """A step of so many rows was made; `python_ns` is processor time, the others are time."""
        self.steps += 1
        self._step_ns += ended_at - (self._ended_at or started_at)
        self._llama_ns += llama_ns
        self._sampling_ns += sampling_ns
        self._python_ns += python_ns
        self._batch += BATCH_WEIGHT * (rows - self._batch) if self._batch else rows
        self._ended_at = ended_at

    def rest(self) -> None:
        """Nothing was to be done: what comes until the next step is no work."""
        self._ended_at = 0

    def counters(self) -> dict[str, float]:
        """Totals and gauges by name, for metrics."""
        return {
            "step_seconds": self._step_ns / NS,
            "llama_seconds": self._llama_ns / NS,
            "sampling_seconds": self._sampling_ns / NS,
            "python_seconds": self._python_ns / NS,
            "batch_rows": self._batch,
            **self.queued.values("queue_seconds"),
            **self.first_token.values("first_token_seconds"),
        }
