"""A job on its way: what changes while it waits, runs and perhaps waits again."""

from __future__ import annotations

from array import array

from saiserve.engines.llamacpp.admission import turn_of
from saiserve.engines.llamacpp.job import Job
from saiserve.engines.llamacpp.lookup import Lookup
from saiserve.engines.llamacpp.prefix_tree import tokens_of
from saiserve.engines.llamacpp.reuse import Held

DECODE_RESERVE = 128
"""Cells kept free for each running stream's next tokens when another is admitted; four times as many after a requeue."""


class Stream:
    """One job's changing part. In the queue `held` is None."""

    __slots__ = (
        "chunk_max",
        "draft",
        "drafted",
        "drawn",
        "ended",
        "held",
        "job",
        "leader",
        "leader_depth",
        "likely_cached",
        "lookup",
        "prefill_end",
        "prefill_turn",
        "requeues",
        "restarts",
        "reused",
        "serial",
        "started_at",
        "starts",
        "tokens",
        "turn",
    )

    def __init__(self, job: Job, now: int, serial: int) -> None:
        self.job = job
        self.serial = serial
        self.turn = turn_of(job, now)
        self.prefill_turn = self.turn
        """Its own turn, or that of the earliest job that waits for its prefix."""
        self.tokens: array[int] = tokens_of(job.tokens)
        self.held: Held | None = None
        self.likely_cached = 0
        """Ids that could have been reused when it came."""
        self.prefill_end = 0
        """Ids known when it last started: up to there it prefills, beyond it decodes."""
        self.reused = 0
        """Ids in the cache when it last started."""
        self.drawn = 0
        self.lookup: Lookup | None = None
        self.draft: tuple[int, ...] = ()
        """Tokens computed beyond the last one drawn, as long as they may turn out right."""
        self.drafted = 0
        """How many there were after the step."""
        self.starts = 0
        self.started_at = 0
        self.requeues = 0
        self.restarts = 0
        """How often it was sent back, with no token drawn between, because the cache was cleared under its suspicion."""
        self.chunk_max = 0
        """Prefill rows at most, 0: no own limit."""
        self.leader: Held | None = None
        """The sequence whose prefill it waits for, until that has `leader_depth` ids ready."""
        self.leader_depth = 0
        self.ended = False

    @property
    def order(self) -> tuple[int, int]:
        """Earlier first."""
        return (self.turn, self.serial)

    @property
    def ready(self) -> int:
        """Ids in the KV cache."""
        return self.held.ready if self.held is not None else 0

    @property
    def prefill_left(self) -> int:
        """Ids to compute before it decodes; a guess while it waits."""
        return max(0, self.prefill_end - self.ready) if self.held else len(self.tokens) - self.likely_cached

    @property
    def is_decoding(self) -> bool:
        """Whether it has a drawn token to compute (one: the next is drawn only after it)."""
        return self.held is not None and self.prefill_end <= self.held.ready < len(self.tokens)

    @property
    def reserve(self) -> int:
        """Cells it may want soon for tokens not drawn yet."""
        return min(max(self.job.max_tokens - self.drawn, 0), DECODE_RESERVE << (2 * min(self.requeues, 10)))

    @property
    def may_spoil(self) -> bool:
        """Whether it may have left NaN in the cache unseen: rows computed with adapters, and no token drawn from them yet."""
        has_drawn = len(self.tokens) > self.prefill_end
        return bool(self.job.adapter) and not has_drawn and self.ready > self.reused

    @property
    def waits_for_leader(self) -> bool:
        """Whether the sequence it waits for is still on its way there."""
        leader = self.leader
        return leader is not None and leader.is_running and leader.ready < self.leader_depth
