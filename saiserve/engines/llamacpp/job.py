"""What the scheduler is given and what it gives back: jobs, steps and notices. Plain data, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from saiserve.engines.llamacpp.kv import Row


@dataclass(frozen=True, slots=True)
class Job:
    """One answer to compute. Immutable; the scheduler keeps what changes."""

    id: str
    """Unique among jobs that have not ended."""
    tokens: tuple[int, ...]
    """Prompt ids followed by resume ids (tokens of this answer already drawn elsewhere); at least one."""
    prompt_tokens: int
    """How many of `tokens` are prompt, 0 < prompt_tokens ≤ len(tokens)."""
    max_tokens: int
    """Tokens still to be drawn at most, ≥ 1. Used for room and wait estimates; the worker ends the job itself."""
    priority: int = 0
    """−100..100; one point is worth one second of earlier arrival."""
    isolation: str = ""
    """Prefixes are shared only among jobs of equal isolation."""
    boundaries: tuple[int, ...] = ()
    """Ascending offsets into `tokens` where a message ends: places worth a checkpoint."""
    adapter: str = ""
    """LoRA adapter to compute with; `isolation` must differ between adapters, whose caches differ."""
    end_key: bytes = b""
    """Equal for jobs of equal tokens and isolation; empty: logits at their end are not kept."""

    def __post_init__(self) -> None:
        """Refuse what no engine could compute."""
        if not 0 < self.prompt_tokens <= len(self.tokens):
            raise ValueError(f"prompt_tokens must be 1..{len(self.tokens)}, not {self.prompt_tokens}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")

    @property
    def is_resumed(self) -> bool:
        """Whether it goes on with an answer begun elsewhere."""
        return self.prompt_tokens < len(self.tokens)


class Sample(NamedTuple):
    """A token to draw after a step."""

    row: int
    """Index into `Step.rows` of the row whose logits to use."""
    job_id: str
    position: int
    """Place of the token to be drawn in prompt + answer; the same after a resume, so draws are too."""


class Part(NamedTuple):
    """Rows [start, end) of a step are one job's."""

    job_id: str
    start: int
    end: int
    is_prefill: bool
    """Tokens known before the step other than the last one drawn."""


@dataclass(frozen=True, slots=True)
class Step:
    """One batch: give `rows` to `KvCache.decode`, report with `Scheduler.completed`, then draw `samples`."""

    rows: tuple[Row, ...]
    samples: tuple[Sample, ...]
    parts: tuple[Part, ...]
    adapter: str = ""
    """LoRA adapter that all of it is computed with."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The job was not taken: the queue is full."""

    wait_s: float
    """Estimated seconds until this job would have started."""


@dataclass(frozen=True, slots=True)
class Started:
    """The job has a lane and a sequence."""

    job_id: str
    cached_tokens: int
    """Prompt tokens that need not be computed (resume tokens are not counted)."""
    again: bool
    """True after a requeue; `cached_tokens` of the first start is the one to report."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Prefill moved on."""

    job_id: str
    prefilled: int
    """Prompt tokens in place, cached ones included, ≤ prompt_tokens."""


@dataclass(frozen=True, slots=True)
class Requeued:
    """The cache was full, or cleared, and the job lost its place; it keeps its arrival and tokens, and starts again later."""

    job_id: str


@dataclass(frozen=True, slots=True)
class OutOfRoom:
    """The job fills the whole cache alone and cannot grow. It has ended: answer with reason `length`."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The model refused this job's rows even alone. It has ended: answer `failed{internal}`."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Spoilt:
    """The cache had to be cleared again and again while this job with adapters drew no token. It has ended: answer `failed`."""

    job_id: str
    suspects: frozenset[str] = frozenset()
    """Adapters that may have spoilt it, its own among them."""


Notice = Started | Progress | Requeued | OutOfRoom | Broken | Spoilt


@dataclass(frozen=True, slots=True)
class HeldPrefix:
    """A prefix that a new request could reuse."""

    tokens: int
    isolation: str
    where: str
    """`running`, `idle` (in the KV cache) or `host` (in host memory)."""
    used_at: int
    """`now` of its last use."""
    size_bytes: int = 0
    """Host memory taken, 0 when in the KV cache."""
    begins_at: int = 0
    """Ids before this are kept as another prefix."""
