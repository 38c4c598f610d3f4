"""Runs jobs over the real scheduler and a real context, and computes the same tokens cold to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from saiserve.engines.llamacpp.binding import LlamaContext
from saiserve.engines.llamacpp.job import Job, Notice, Started, Step
from saiserve.engines.llamacpp.kv import DecodeOutcome, Row
from saiserve.engines.llamacpp.scheduler import Scheduler, SchedulerConfig

STEP_NS = 10_000_000
STEPS_MAX = 10_000


@dataclass
class Run:
    """One job with the tokens drawn for it and the logits they were drawn from."""

    job: Job
    answer: list[int] = field(default_factory=list)
    logits: list[NDArray[np.float32]] = field(default_factory=list)
    cached_tokens: int = -1

    @property
    def is_over(self) -> bool:
        return len(self.answer) >= self.job.max_tokens


class Harness:
    """A scheduler over a context, driven step by step with greedy draws."""

    def __init__(
        self,
        context: LlamaContext,
        *,
        lanes: int = 4,
        hot_cells_max: int = 2048,
        host_bytes: int = 0,
        pins: bool = True,
        park_after_s: float | None = None,
        before: Callable[[Step], None] = lambda _step: None,
    ) -> None:
        """`before` is called ahead of each step."""
        self.context = context
        self._before = before
        self.now = 0
        self.scheduler = Scheduler(
            context,
            SchedulerConfig(
                lanes=lanes,
                batch_max=context.batch_max,
                hot_cells_max=hot_cells_max,
                host_bytes_max=host_bytes,
                pins=pins,
                park_after_s=park_after_s,
                prefill_rate=50_000.0,
                decode_rate=5_000.0,
            ),
        )
        self.runs: dict[str, Run] = {}
        self._serial = 0

    def submit(
        self,
        tokens: tuple[int, ...],
        *,
        draw: int,
        resumed: int = 0,
        boundaries: tuple[int, ...] = (),
        adapter: str = "",
        isolation: str = "",
    ) -> Run:
        """Queue a prompt; its last `resumed` tokens count as an answer begun elsewhere."""
        self._serial += 1
        job = Job(
            id=f"job-{self._serial}",
            tokens=tokens,
            prompt_tokens=len(tokens) - resumed,
            max_tokens=draw,
            boundaries=boundaries,
            adapter=adapter,
            isolation=isolation,
        )
        assert self.scheduler.submit(self.now, job) is None
        run = self.runs[job.id] = Run(job)
        return run

    def step(self) -> bool:
        """One turn of the worker's loop; False when there was nothing to compute."""
        self.now += STEP_NS
        step = self.scheduler.plan(self.now)
        self._note(self.scheduler.notices())
        if step is None:
            return False
        self._before(step)
        outcome = self.context.decode(step.rows)
        self._note(self.scheduler.completed(self.now, step, outcome, STEP_NS))
        if outcome is not DecodeOutcome.DONE:
            return True
        for sample in step.samples:
            if not self.scheduler.wants(sample.job_id):
                continue
            run = self.runs[sample.job_id]
            assert sample.position == len(run.job.tokens) + len(run.answer)
            run.logits.append(self.context.logits(sample.row).copy())
            run.answer.append(int(run.logits[-1].argmax()))
            if run.is_over:
                self.scheduler.finish(self.now, sample.job_id)
            else:
                self.scheduler.sampled(sample.job_id, run.answer[-1])
        return True

    def finish(self, *runs: Run) -> None:
        """Go on until these are over."""
        for _ in range(STEPS_MAX):
            if all(run.is_over for run in runs):
                return
            assert self.step(), "nothing to compute, yet a job is not over"
        raise AssertionError("the jobs do not end")

    def run(self, tokens: tuple[int, ...], *, draw: int = 4, boundaries: tuple[int, ...] = ()) -> Run:
        """Submit and finish one prompt."""
        run = self.submit(tokens, draw=draw, boundaries=boundaries)
        self.finish(run)
        return run

    def settle(self) -> None:
        """Do all lazy moves."""
        for _ in range(STEPS_MAX):
            if not self.scheduler.has_chores:
                return
            self.step()
        raise AssertionError("the scheduler's chores do not end")

    def _note(self, notices: tuple[Notice, ...]) -> None:
        for notice in notices:
            if isinstance(notice, Started) and not notice.again:
                self.runs[notice.job_id].cached_tokens = notice.cached_tokens


def cold_logits(context: LlamaContext, run: Run) -> list[NDArray[np.float32]]:
    """What a fresh, empty context says at each place the run drew a token."""
    tokens = [*run.job.tokens, *run.answer[:-1]]
    first = len(run.job.tokens) - 1
    found: list[NDArray[np.float32]] = []
    size = min(context.batch_max, context.outputs_max)
    for start in range(0, len(tokens), size):
        rows = tuple(Row(0, at, tokens[at], at >= first) for at in range(start, min(start + size, len(tokens))))
        assert context.decode(rows) is DecodeOutcome.DONE
        found += [context.logits(index).copy() for index, row in enumerate(rows) if row.wants_logits]
    context.remove(0, -1, -1)
    return found


def worst_difference(context: LlamaContext, run: Run) -> float:
    """The largest difference between a run's logits and cold ones."""
    cold = cold_logits(context, run)
    assert len(cold) == len(run.logits) > 0
    return max(float(np.abs(one - other).max()) for one, other in zip(cold, run.logits, strict=True))
