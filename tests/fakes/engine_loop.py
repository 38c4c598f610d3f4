"""Drives a scheduler over the fake cache as the worker would, on virtual time, and checks every step.

The fake model draws the next token from all ids before it, so a wrong prefix would change the answer too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from saiserve.engines.llamacpp.job import Broken, Job, Notice, OutOfRoom, Progress, Refusal, Spoilt, Started, Step
from saiserve.engines.llamacpp.kv import DecodeOutcome, Family
from saiserve.engines.llamacpp.scheduler import Scheduler, SchedulerConfig
from tests.fakes.kv import FakeKv

MS = 1_000_000
PREFILL_TOKENS_PER_S = 300
DECODE_STEP_MS = 8
FAMILIES = [Family.FULL, Family.WINDOW, Family.RECURRENT]
REST_MS = 100


def next_token(ids: tuple[int, ...]) -> int:
    """What the fake model says after these ids."""
    return 1000 + hash(ids) % 1000


@dataclass
class Loop:
    """A scheduler, its fake cache and everything that was said."""

    kv: FakeKv
    scheduler: Scheduler
    now: int = 0
    answers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    jobs: dict[str, Job] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    started: dict[str, Started] = field(default_factory=dict)
    progress: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    notices: list[Notice] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    model: Callable[[tuple[int, ...]], int] = next_token
    ends: set[bytes] = field(default_factory=set)
    """Prompts whose last logits are known: the scheduler's."""

    def submit(self, job: Job) -> Refusal | None:
        refusal = self.scheduler.submit(self.now, job)
        if refusal is None:
            self.jobs[job.id] = job
        return refusal

    def cancel(self, job_id: str) -> None:
        self.scheduler.cancel(self.now, job_id)
        if job_id in self.jobs:
            self.ended.setdefault(job_id, "cancelled")

    def turn(self, cancel_in_flight: str | None = None) -> Step | None:
        """One round of the worker's loop; None when there was nothing to compute."""
        step = self.scheduler.plan(self.now)
        self._hear(self.scheduler.notices())
        self.check()
        if step is None:
            return None
        self.steps.append(step)
        outcome = self.kv.decode(step.rows)
        decode = sum(not part.is_prefill for part in step.parts)
        prefill = len(step.rows) - decode
        elapsed = int(MS * (DECODE_STEP_MS * (1 + 0.1 * decode) * (decode > 0) + 1000 * prefill / PREFILL_TOKENS_PER_S))
        self.step_ms.append(elapsed / MS)
        self.now += elapsed
        if cancel_in_flight is not None:
            self.cancel(cancel_in_flight)
        self._hear(self.scheduler.completed(self.now, step, outcome, elapsed))
        if outcome is DecodeOutcome.DONE:
            self._draw(step)
        self.check()
        return step

    def _draw(self, step: Step) -> None:
        for sample in step.samples:
            if not self.scheduler.wants(sample.job_id):
                continue
            job = self.jobs[sample.job_id]
            assert sample.position == len(job.tokens) + len(self.answers[job.id])
            assert step.rows[sample.row].wants_logits
            if job.end_key and not self.answers[job.id]:
                self.ends.add(job.end_key)
            self._take(job, step.rows[sample.row].sequence)

    def _take(self, job: Job, sequence: int) -> None:
        answer = self.answers[job.id]
        seen = self.kv.context(sequence)[: len(job.tokens) + len(answer)]  # guesses may follow
        assert seen == (*job.tokens, *answer), f"{job.id} was computed on other ids than its own"
        answer.append(self.model(seen))
        self.scheduler.sampled(job.id, answer[-1])
        if len(answer) == job.max_tokens:
            self.scheduler.finish(self.now, job.id)
            self.ended[job.id] = "finished"

    def _hear(self, notices: tuple[Notice, ...]) -> None:
        self.notices += notices
        for notice in notices:
            if isinstance(notice, Started) and not notice.again:
                self.started[notice.job_id] = notice
                if self.scheduler.wants(notice.job_id):
                    held = self.scheduler._streams[notice.job_id].held
                    assert held is not None
                    self._take(self.jobs[notice.job_id], held.sequence)
            elif isinstance(notice, Progress):
                self.progress[notice.job_id].append(notice.prefilled)
            elif isinstance(notice, OutOfRoom):
                self.ended[notice.job_id] = "out of room"
            elif isinstance(notice, Broken):
                self.ended[notice.job_id] = "broken"
            elif isinstance(notice, Spoilt):
                self.ended[notice.job_id] = "spoilt"

    def run(self, turns_max: int = 10_000) -> None:
        """Until nothing is left to do."""
        for _ in range(turns_max):
            if self.turn() is not None:
                continue
            self.now += REST_MS * MS  # some chores are due only after a rest
            if not self.scheduler.has_chores and not self.scheduler._streams:
                return
        raise AssertionError(f"not done after {turns_max} turns")

    def check(self) -> None:
        """What must hold between any two operations."""
        counters = self.scheduler.counters()
        assert counters["cells_used"] == self.kv.cells_used, "the ledger differs from the cache"
        load = self.scheduler.load()
        assert load.busy <= load.lanes
        assert 0 <= counters["cells_idle"] <= counters["cells_used"]

    def cached(self, job_id: str) -> int:
        return self.started[job_id].cached_tokens


def make_loop(
    family: Family = Family.FULL, *, cells: int = 2000, sequences: int = 17, window: int = 0, **config: object
) -> Loop:
    """A loop with small defaults; `config` goes to SchedulerConfig."""
    if family is Family.WINDOW and not window:
        window = 16
    values: dict[str, object] = {"lanes": 16, "batch_max": 64, **config}
    kv = FakeKv(family, cells=cells, sequences=sequences, window=window, batch_max=int(str(values["batch_max"])))
    ends: set[bytes] = set()
    return Loop(kv, Scheduler(kv, SchedulerConfig(**values), ends), ends=ends)  # type: ignore[arg-type]


def make_hosted(family: Family, **config: object) -> Loop:
    """The same with host memory."""
    return make_loop(family, **{"host_bytes_max": 1 << 24, **config})  # type: ignore[arg-type]


def job(job_id: str, tokens: list[int] | tuple[int, ...], max_tokens: int = 4, **more: object) -> Job:
    """A job whose tokens are all prompt unless told otherwise."""
    values: dict[str, object] = {"prompt_tokens": len(tokens), "max_tokens": max_tokens, **more}
    return Job(job_id, tuple(tokens), **values)  # type: ignore[arg-type]


def turns(loop: Loop, name: str, history: list[int], more: range, answer: int = 10) -> list[int]:
    """One turn of a conversation; returns its history."""
    loop.submit(job(name, [*history, *more], answer, boundaries=(len(history) or 20, len(history) + len(more) - 3)))
    loop.run()
    return [*history, *more, *loop.answers[name]]
