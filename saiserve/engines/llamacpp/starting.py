"""Who begins when, and on what: lanes in the order of turns, waiting for another's prefill, room. Part of the scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from saiserve.engines.llamacpp.admission import Queue
from saiserve.engines.llamacpp.checkpoints import checkpoint_places
from saiserve.engines.llamacpp.job import Job, Notice, Started
from saiserve.engines.llamacpp.parking import has_no_lane_left
from saiserve.engines.llamacpp.prefix_cache import PrefixCache
from saiserve.engines.llamacpp.prefix_tree import tokens_of
from saiserve.engines.llamacpp.reuse import Choice, ReuseKind
from saiserve.engines.llamacpp.stream import Stream

WAIT_GAIN_MIN = 16
"""Tokens that waiting for another's prefill must save."""


class Starts:
    """Begins jobs. `queue`, `running` and `notices` are the scheduler's own, and change here."""

    def __init__(
        self,
        cache: PrefixCache,
        *,
        lanes: int,
        ends: Container[bytes],
        queue: Queue[Stream],
        running: dict[int, Stream],
        notices: list[Notice],
        counts: Counter[str],
    ) -> None:
        self._cache = cache
        self._lanes = lanes
        self._ends = ends
        self._queue = queue
        self._running = running
        self._notices = notices
        self._counts = counts

    def cached_tokens(self, job: Job) -> int:
        """Prompt tokens of a job that would be reused if it started now: for `accepted`."""
        choice = self._cache.look(tokens_of(job.tokens), job.isolation, whole=job.end_key in self._ends)
        return min(choice.cut, job.prompt_tokens)

    def look(self, stream: Stream) -> Choice:
        whole = stream.starts == 0 and stream.job.end_key in self._ends
        return self._cache.look(stream.tokens, stream.job.isolation, whole=whole)

    def admit(self, now: int) -> None:
        """Give lanes to waiting jobs in their order; those that wait for another's prefill are passed over."""
        self._make_way(now)
        for stream in self._queue:
            if len(self._running) >= self._lanes:
                return
            if stream.waits_for_leader:
                continue
            choice = self.look(stream)
            if not self._running and self._cache.clear_ground(now, choice):
                choice = self.look(stream)
            if self._follows(stream, choice):
                continue
            if choice.segments and self._cache.room.has_moved_much:
                return
            if not self._fits(stream, choice) or not self._start(now, stream, choice):
                return

    def _make_way(self, now: int) -> None:
        """Once no lane is left, idle prefixes go first, so that what starts now gets their low cells (decision 0158)."""
        if not self._cache.cells.idle:
            return
        waiting = [stream for stream in self._queue if not stream.waits_for_leader]
        if has_no_lane_left(running=len(self._running), waiting=len(waiting), lanes=self._lanes):
            starting = waiting[: self._lanes - len(self._running)]
            sources = (self.look(stream).source for stream in starting)
            self._cache.room.park_others(now, [source for source in sources if source is not None])

    def _follows(self, stream: Stream, choice: Choice) -> bool:
        """Let a job wait for a running one that will soon have more of its prompt."""
        leader, depth = choice.leader, choice.leader_depth
        if leader is None:
            return False
        ahead = self._running[leader.sequence]
        if stream.starts == 0 and stream.job.end_key and stream.job.end_key == ahead.job.end_key:
            depth = len(stream.tokens)  # the very same prompt: its last logits will do for both
            if leader.ready >= depth:
                return False
        elif depth - max(choice.cut, leader.ready) < WAIT_GAIN_MIN:
            return False
        if self._cache.kind is ReuseKind.STATES:
            if not self._cache.makes_checkpoints:
                return False
            leader.cuts.add(depth)
        stream.leader, stream.leader_depth = leader, depth
        ahead.prefill_turn = min(ahead.prefill_turn, stream.turn)
        self._counts["waits_for_prefix"] += 1
        return True

    def _fits(self, stream: Stream, choice: Choice) -> bool:
        """Whether the cache has cells for this job beside what the running ones will want soon."""
        if not self._running:
            return True
        promised = sum(other.prefill_left + other.reserve for other in self._running.values())
        wanted = max(len(stream.tokens) - choice.source_cut, choice.cells) + stream.reserve
        return wanted + promised <= self._cache.room.cells + self._cache.idle_cells_beside(choice.source)

    def _start(self, now: int, stream: Stream, choice: Choice) -> bool:
        if choice.segments and not self._cache.room.make(now, choice.cells, keep=choice.source):
            choice = Choice()
        held = self._cache.open(now, stream.tokens, stream.job.isolation, choice)
        if held is None:
            return False
        self._queue.remove(stream)
        stream.held, stream.leader = held, None
        stream.reused = held.ready
        stream.prefill_end = len(stream.tokens)
        stream.prefill_turn = stream.turn
        stream.started_at = stream.started_at or now
        stream.starts += 1
        self._running[held.sequence] = stream
        cached = min(held.ready, stream.job.prompt_tokens)
        self._counts["prefix_hit_tokens"] += cached
        self._notices.append(Started(stream.job.id, cached, stream.starts > 1))
        places = checkpoint_places(stream.job.boundaries, held.ready, len(stream.tokens))
        if self._cache.makes_checkpoints:
            held.cuts = places
        elif self._cache.kind is ReuseKind.PINNED and places:
            held.marks = tuple({min(places), max(places)})
        if held.ready in held.cuts:
            held.cuts.discard(held.ready)
            self._cache.host.take_checkpoint(now, held)
        return True
