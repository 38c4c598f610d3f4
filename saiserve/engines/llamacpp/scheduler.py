"""Decides, step by step, which tokens to compute: lanes, queue, prefill by time budget, prefix reuse.

Pure: `now` (int nanoseconds) and measured times come in as arguments; the KV cache is reached only through `KvCache`.
The worker's loop:

    scheduler.submit(now, job)            # any time between steps; Refusal when the queue is full
    step = scheduler.plan(now)            # None: nothing to do, wait for a message
    forward(scheduler.notices())          # Started, Requeued, OutOfRoom: before the long decode
    outcome = kv.decode(step.rows)
    forward(scheduler.completed(now, step, outcome, elapsed_ns))
    if outcome is DONE:
        for sample in step.samples:
            if scheduler.wants(sample.job_id):        # it may have been cancelled meanwhile
                token = draw(sample)
                scheduler.sampled(now, sample.job_id, token)     # it goes on, or:
                scheduler.finish(now, sample.job_id)             # it has ended (end token, stop string, length)

Jobs that end by cancel, OutOfRoom or Broken need no `finish`. `plan` must be followed by `completed` before the next
`plan`. Everything is to be called from one thread; `cancel` may be called while a step is being decoded only if that
is so too (between chunks of the worker's loop).
"""

from __future__ import annotations

from dataclasses import dataclass

from saiserve.engines.llamacpp.job import HeldPrefix, Job, Notice, Refusal, Step
from saiserve.engines.llamacpp.kv import DecodeOutcome, KvCache
from saiserve.engines.messages import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits and first guesses. Rates are learned; give what was measured at load."""

    lanes: int
    """Streams at once, ≥ 1; see lanes.py."""
    batch_max: int
    """Rows in one step at most: n_ubatch."""
    queue_max: int = 256
    """Jobs waiting for a lane; the next is refused."""
    prefill_budget_s: float = 0.25
    """Longest step wanted while streams run."""
    hot_cells_max: int = 2048
    """Cells that only idle prefixes hold; beyond it they move to host memory, one per step."""
    host_bytes_max: int = 0
    """Host memory for moved prefixes and checkpoints; 0: none, idle prefixes are dropped instead."""
    prefill_rate: float = 0.0
    """Tokens per second measured at load, 0: unknown."""
    decode_rate: float = 0.0
    """Tokens per second of one stream alone measured at load, 0: unknown."""
    pins: bool = True
    """WINDOW only: hold cells by twin ids. Right with swa_full=True, wrong with False (docs/engine.md)."""


class Scheduler:
    """Lanes, queue, batches and reuse over one KV cache."""

    def __init__(self, kv: KvCache, config: SchedulerConfig) -> None:
        raise NotImplementedError

    @property
    def spare_sequence(self) -> int:
        """A sequence id that is never given to a job: for embeddings, measurements and moves. Leave it empty."""
        raise NotImplementedError

    def submit(self, now: int, job: Job) -> Refusal | None:
        """Take a job, or refuse it when the queue is full.

        Raises ValueError when the id is in use or the tokens could never fit the cache; nothing changed then.
        """
        raise NotImplementedError

    def cached_tokens(self, job: Job) -> int:
        """Prompt tokens of a job that would be reused if it started now: for `accepted`."""
        raise NotImplementedError

    def cancel(self, now: int, job_id: str) -> None:
        """End a job wherever it stands; unknown ids are ignored. What it computed stays as a cached prefix."""
        raise NotImplementedError

    def plan(self, now: int) -> Step | None:
        """Do the due KV operations and compose the next batch; None when there is nothing to compute."""
        raise NotImplementedError

    def completed(self, now: int, step: Step, outcome: DecodeOutcome, elapsed_ns: int) -> tuple[Notice, ...]:
        """Learn what the batch came to. After NO_ROOM and REJECTED the same tokens come again in a later plan."""
        raise NotImplementedError

    def notices(self) -> tuple[Notice, ...]:
        """Notices not yet given out (each is given once, here or by `completed`)."""
        raise NotImplementedError

    def wants(self, job_id: str) -> bool:
        """Whether a token should be drawn for this job: it is running and waits for one."""
        raise NotImplementedError

    def sampled(self, now: int, job_id: str, token: int) -> None:
        """The token drawn for a job; it is a row of the next plan. Unknown ids are ignored."""
        raise NotImplementedError

    def finish(self, now: int, job_id: str) -> None:
        """The job has ended; what it computed becomes a cached prefix. Unknown ids are ignored."""
        raise NotImplementedError

    def embedding_turn(self, now: int, cells: int) -> int | None:
        """The spare sequence, if a batch of `cells` embedding tokens may run now: low priority, room made for it.

        Empty the sequence afterwards and call `embedding_done`.
        """
        raise NotImplementedError

    def embedding_done(self, now: int, elapsed_ns: int) -> None:
        """An embedding batch took this long; while streams run the next waits four times as long."""
        raise NotImplementedError

    def load(self) -> Load:
        """How busy and how fast."""
        raise NotImplementedError

    def counters(self) -> dict[str, float]:
        """Running totals and gauges by name, for metrics."""
        raise NotImplementedError

    def held(self) -> tuple[HeldPrefix, ...]:
        """Prefixes that could be reused, newest first."""
        raise NotImplementedError
