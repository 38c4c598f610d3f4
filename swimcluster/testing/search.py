"""Runs many seeds, over processes when there are several to spare, and gathers what broke."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
SEEDS_PER_TASK = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed brought."""

    seed: int
    digest: str
    violations: tuple[str, ...] = ()
    """Empty for a clean run; otherwise one line each, with the time."""
    coverage: dict[str, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether nothing was violated."""
        return not self.violations


Run = Callable[[int], Outcome]


def search(run: Run, seeds: Iterable[int], *, processes: int = 1, stop_at: int | None = None) -> Iterator[Outcome]:
    """Run every seed and yield its outcome, in order of the seeds whatever the number of processes.

    `run` must be picklable (a module's function or a partial of one) for more than one process. `stop_at` ends the
    search after that many unclean outcomes.
    """
    broken = 0
    for outcome in _outcomes(run, seeds, processes):
        yield outcome
        broken += not outcome.clean
        if stop_at is not None and broken >= stop_at:
            return


def _outcomes(run: Callable[[int], T], seeds: Iterable[int], processes: int) -> Iterator[T]:
    if processes <= 1:
        yield from map(run, seeds)
        return
    # Spawned, not forked: a fresh interpreter shares no state with this one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=processes, mp_context=context) as pool:
        try:
            yield from pool.map(run, seeds, chunksize=SEEDS_PER_TASK)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def map_seeds(task: Callable[[int], T], seeds: Iterable[int], *, processes: int = 1) -> list[T]:
    """`[task(seed) for seed in seeds]`, over processes when asked to; `task` must then be picklable."""
    return list(_outcomes(task, seeds, processes))
