"""Where an engine's time went: steps and their parts, and how long requests waited. Pure; nanoseconds come in."""

from __future__ import annotations

from saiserve.engines.waits import NS, Waits

BATCH_WEIGHT = 0.1
"""Share of the newest step in the mean batch size."""


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
