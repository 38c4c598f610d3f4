"""Chooses how many threads compute, step by step, when the operator has not said.

Threads wait for each other at every layer. With a core for each that is cheap; when other programs want the same cores,
one thread that is set aside holds up all others, and two threads can be ten times slower than one. So: when steps take
several times what they took at best, fewer threads are tried; later more are tried again. Pure: times come in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SUSPICION = 3.0
"""Steps this many times slower than the best of their size make fewer threads worth trying."""
FEWER_GAIN, MORE_GAIN = 0.8, 0.95
"""A trial is kept when its steps take at most this share of the others'."""
TRIAL_STEPS = 6
WATCHED_STEPS = 12
"""Steps that must be slow on average before a trial."""
PATIENCE_STEPS = 64
"""Steps between trials; doubles after each that changed nothing."""
PATIENCE_MAX = 2_048
WEIGHT = 0.2
"""Share of the newest step in a running mean."""


@dataclass(slots=True)
class _Record:
    """Step times of one thread count by size class, seconds."""

    best: dict[int, float] = field(default_factory=dict)
    mean: dict[int, float] = field(default_factory=dict)

    def learn(self, size: int, step_s: float) -> None:
        self.best[size] = min(step_s, self.best.get(size, step_s))
        self.mean[size] = self.mean.get(size, step_s) * (1 - WEIGHT) + step_s * WEIGHT


class ThreadChooser:
    """`threads` is what the next step should use; tell each step's time to `observe`."""

    def __init__(self, threads_max: int, lone_step_s: dict[int, float] | None = None, *, fixed: bool = False) -> None:
        """`lone_step_s`: seconds of a step of one row by thread count, measured at load; the fastest begins.

        `fixed`: never choose anything but `threads_max`.
        """
        self._fixed = fixed or threads_max == 1
        self._max = threads_max
        self._records: dict[int, _Record] = {}
        self.threads = threads_max
        measured = lone_step_s or {}
        for threads, step_s in measured.items():
            self._record(threads).learn(1, step_s)
            if step_s < FEWER_GAIN * measured.get(self.threads, step_s):
                self.threads = threads
        self._home = self.threads
        self._trial: list[float] = []
        self._slowness = 1.0
        self._watched = 0
        self._patience = PATIENCE_STEPS
        self._waited = 0

    def observe(self, rows: int, step_s: float) -> None:
        """A step of so many rows took this long with `threads` threads."""
        if self._fixed or step_s <= 0:
            return
        size = rows.bit_length()
        if self.threads != self._home:
            self._judge(size, step_s)
            return
        record = self._record(self._home)
        record.learn(size, step_s)
        self._slowness += WEIGHT * (step_s / record.best[size] - self._slowness)
        self._watched += 1
        self._waited += 1
        if self._waited < self._patience:
            return
        if self._home < self._max:
            self.threads = min(self._max, self._home * 2)
        elif self._watched >= WATCHED_STEPS and self._slowness > SUSPICION:
            self.threads = max(1, self._home // 2)

    def _judge(self, size: int, step_s: float) -> None:
        """Compare a trial's steps with the mean of their size before it."""
        usual = self._record(self._home).mean.get(size)
        self._record(self.threads).learn(size, step_s)
        if usual is not None:
            self._trial.append(step_s / usual)
        if len(self._trial) < TRIAL_STEPS:
            return
        ratios = sorted(self._trial)
        gain = MORE_GAIN if self.threads > self._home else FEWER_GAIN
        if ratios[len(ratios) // 2] <= gain:
            self._home, self._patience = self.threads, PATIENCE_STEPS
        else:
            self.threads, self._patience = self._home, min(2 * self._patience, PATIENCE_MAX)
        self._trial.clear()
        self._slowness, self._watched, self._waited = 1.0, 0, 0

    def _record(self, threads: int) -> _Record:
        record = self._records.get(threads)
        if record is None:
            record = self._records[threads] = _Record()
        return record
