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
                scheduler.sampled(sample.job_id, token)          # it goes on, or:
                scheduler.finish(now, sample.job_id)             # it has ended (end token, stop string, length)

Jobs that end by cancel, OutOfRoom, Broken or Spoilt need no `finish`. `plan` must be followed by `completed` before the next
`plan`. Everything is to be called from one thread; `cancel` may be called while a step is being decoded only if that
is so too; it takes effect with `completed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from saiserve.engines.llamacpp.admission import TYPICAL_ANSWER_TOKENS, Queue, ServiceTime
from saiserve.engines.llamacpp.batches import Batches
from saiserve.engines.llamacpp.guesses import Guesses
from saiserve.engines.llamacpp.job import (
    Broken,
    HeldPrefix,
    Job,
    Notice,
    OutOfRoom,
    Progress,
    Refusal,
    Requeued,
    Spoilt,
    Step,
)
from saiserve.engines.llamacpp.kv import DecodeOutcome, KvCache
from saiserve.engines.llamacpp.prefix_cache import PrefixCache
from saiserve.engines.llamacpp.rates import Rates
from saiserve.engines.llamacpp.reuse import ReuseKind
from saiserve.engines.llamacpp.scheduler_config import SchedulerConfig
from saiserve.engines.llamacpp.starting import Starts
from saiserve.engines.llamacpp.stream import Stream
from saiserve.engines.messages import Load
from saiserve.engines.waits import NS

__all__ = ["Scheduler", "SchedulerConfig"]

COUNTERS = (
    "steps",
    "prefill_tokens",
    "decode_tokens",
    "drafted",
    "draft_hits",
    "prefix_hit_tokens",
    "waits_for_prefix",
    "finished",
    "cancelled",
    "refused",
    "requeues",
    "no_room",
    "rejected",
    "clears",
)
"""Totals counted here; those of the cache are added to them."""
RESTARTS_MAX = 1
"""A job under suspicion while the cache must be cleared is sent back so often."""
EMBEDDING_SHARE = 0.2
"""Share of the time that embeddings get while streams run."""


class Scheduler:
    """Lanes, queue, batches and reuse over one KV cache."""

    def __init__(self, kv: KvCache, config: SchedulerConfig, ends: Container[bytes] = frozenset()) -> None:
        """`ends` holds the `end_key` of jobs at whose end logits are known: they may start with nothing to compute.

        Such a job is wanted (`wants`) as soon as `Started` says that it began, and in no step's samples.
        """
        if not 1 <= config.lanes <= min(kv.sequences_max - 1, config.batch_max):
            raise ValueError(
                f"lanes must be 1..{min(kv.sequences_max - 1, config.batch_max)} (one sequence is spare, "
                f"each lane needs a row), not {config.lanes}"
            )
        self.config = config
        self.rates = Rates(config.prefill_rate, config.decode_rate)
        self._cache = PrefixCache(
            kv,
            hot_cells_max=config.hot_cells_max,
            host_bytes_max=config.host_bytes_max,
            pins=config.pins,
            park_after_ns=None if config.park_after_s is None else int(config.park_after_s * NS),
        )
        self._cells_total = kv.cells_total
        self._queue: Queue[Stream] = Queue()
        self._streams: dict[str, Stream] = {}
        self._running: dict[int, Stream] = {}
        self._notices: list[Notice] = []
        self._in_flight: Step | None = None
        self._service = ServiceTime()
        self._serial = 0
        self._embedding_after = 0
        self._counts: Counter[str] = Counter()
        self._starts = Starts(
            self._cache,
            lanes=config.lanes,
            ends=ends,
            queue=self._queue,
            running=self._running,
            notices=self._notices,
            counts=self._counts,
        )
        goes_back = self._cache.kind is not ReuseKind.STATES
        self._guesses = Guesses(
            self._cache, is_on=config.speculates and goes_back, batch_max=config.batch_max, counts=self._counts
        )
        self._batches = Batches(
            config,
            self.rates,
            self._cache.room,
            self._guesses,
            streams=self._streams,
            running=self._running,
            give_way=self._give_way,
        )

    @property
    def has_chores(self) -> bool:
        """Whether `plan` still has something to move though it may return None: call it again soon when idle."""
        return self._cache.room.has_chores

    @property
    def only_decodes(self) -> bool:
        """Whether all that is here are running streams, each with a token to compute."""
        return all(stream.is_decoding for stream in self._streams.values())

    @property
    def has_moved(self) -> bool:
        """Whether the last `plan` moved something: call it again at once when idle."""
        return self._cache.room.has_moved

    # Jobs come and go

    def submit(self, now: int, job: Job) -> Refusal | None:
        """Take a job, or refuse it when the queue is full.

        Raises ValueError when the id is in use or the tokens could never fit the cache; nothing changed then.
        """
        if job.id in self._streams:
            raise ValueError(f"job {job.id!r} is already here")
        if len(job.tokens) >= self._cells_total:
            raise ValueError(f"{len(job.tokens)} tokens leave no room in a cache of {self._cells_total} cells")
        self._serial += 1
        stream = Stream(job, now, self._serial)
        if len(self._queue) >= self.config.queue_max:
            self._counts["refused"] += 1
            return Refusal(self._wait_s(stream))
        stream.likely_cached = self._starts.look(stream).cut
        self._streams[job.id] = stream
        self._queue.add(stream)
        return None

    def cached_tokens(self, job: Job) -> int:
        """Prompt tokens of a job that would be reused if it started now: for `accepted`."""
        return self._starts.cached_tokens(job)

    def cancel(self, now: int, job_id: str) -> None:
        """End a job wherever it stands; unknown ids are ignored. What it computed stays as a cached prefix."""
        stream = self._streams.pop(job_id, None)
        if stream is None:
            return
        self._counts["cancelled"] += 1
        stream.ended = True
        if stream.held is None:
            self._queue.remove(stream)
        elif not self._is_in_flight(job_id):
            self._leave(now, stream)

    def finish(self, now: int, job_id: str) -> None:
        """The job has ended; what it computed becomes a cached prefix. Unknown ids are ignored."""
        stream = self._streams.pop(job_id, None)
        if stream is None:
            return
        stream.ended = True
        self._counts["finished"] += 1
        if stream.held is None:
            self._queue.remove(stream)
            return
        self._service.learn(now - stream.started_at)
        if not self._is_in_flight(job_id):
            self._leave(now, stream)

    @property
    def suspects(self) -> frozenset[str]:
        """Adapters that may spoil the cache: of jobs that have computed rows and drawn no token since they started."""
        return frozenset(stream.job.adapter for stream in self._running.values() if stream.may_spoil)

    def start_over(self, now: int, *, is_explained: bool = False) -> None:
        """Clear the cache, of which nothing is to be trusted; jobs that run go back to the queue.

        Unless it `is_explained` by a job that has failed, it counts against those under suspicion (`RESTARTS_MAX`).
        Raises RuntimeError while a step is being computed; nothing changed then.
        """
        if self._in_flight is not None:
            raise RuntimeError("the cache cannot be cleared under a step")
        suspects = self.suspects
        for stream in list(self._running.values()):
            stream.restarts += stream.may_spoil and not is_explained
            self._leave(now, stream)
            if stream.restarts > RESTARTS_MAX:
                self._end(stream)
                self._notices.append(Spoilt(stream.job.id, suspects))
            else:
                self._queue.add(stream)
                self._notices.append(Requeued(stream.job.id))
        self._cache.clear()
        for stream in self._queue:
            stream.likely_cached = 0
        self._counts["clears"] += 1

    def wants(self, job_id: str) -> bool:
        """Whether a token should be drawn for this job: it is running and waits for one."""
        stream = self._streams.get(job_id)
        return stream is not None and stream.held is not None and stream.held.ready == len(stream.tokens)

    def sampled(self, job_id: str, token: int) -> None:
        """The token drawn for a job; it is a row of the next plan. Unknown ids are ignored."""
        if self.wants(job_id):
            stream = self._streams[job_id]
            stream.tokens.append(token)
            stream.drawn += 1
            stream.restarts = 0
            if stream.draft:
                self._guesses.compare(stream, token)

    def _is_in_flight(self, job_id: str) -> bool:
        return self._in_flight is not None and any(part.job_id == job_id for part in self._in_flight.parts)

    def _leave(self, now: int, stream: Stream) -> None:
        """Give up lane and sequence."""
        assert stream.held is not None
        self._guesses.retract(stream)
        del self._running[stream.held.sequence]
        self._cache.close(now, stream.held)
        stream.likely_cached = stream.held.ready
        stream.held = None

    def _end(self, stream: Stream) -> None:
        """Forget a job that is nowhere any more."""
        del self._streams[stream.job.id]
        stream.ended = True

    def _wait_s(self, stream: Stream) -> float:
        ahead = sum(1 for other in self._queue if other.order < stream.order)
        prefill_s = stream.prefill_left / self.rates.prefill if self.rates.prefill else 0.0
        answer_tokens = min(stream.job.max_tokens, TYPICAL_ANSWER_TOKENS)
        guess_s = prefill_s + answer_tokens * self.rates.decode_step_s(self.config.lanes)
        return self._service.wait_s(ahead, self.config.lanes, guess_s)

    # A step

    def plan(self, now: int) -> Step | None:
        """Do the due KV operations and compose the next batch; None when there is nothing to compute."""
        if self._in_flight is not None:
            raise RuntimeError("the last step was not reported with completed()")
        self._cache.begin_step()
        self._take_checkpoints(now)
        self._starts.admit(now)
        self._cache.room.park_one(now)
        jobs = len(self._streams)
        step = self._batches.next(now)
        if step is None and len(self._streams) < jobs:  # a lone job ran out of room: the next may start
            self._starts.admit(now)
            step = self._batches.next(now)
        if step is not None:
            self._in_flight = step
            self._batches.planned()
            self._counts["steps"] += 1
        return step

    def _take_checkpoints(self, now: int) -> None:
        for stream in self._running.values():
            held = stream.held
            if held is not None and held.ready in held.cuts:
                held.cuts.discard(held.ready)
                self._cache.host.take_checkpoint(now, held)

    def _give_way(self, now: int) -> None:
        """No cell is left: the youngest stream goes back to the queue; a lone one has reached its end."""
        youngest = max(self._running.values(), key=lambda stream: stream.order)
        self._leave(now, youngest)
        if self._running:
            self._counts["requeues"] += 1
            youngest.requeues += 1
            self._queue.add(youngest)
            self._notices.append(Requeued(youngest.job.id))
        else:
            self._end(youngest)
            self._notices.append(OutOfRoom(youngest.job.id))

    def completed(self, now: int, step: Step, outcome: DecodeOutcome, elapsed_ns: int) -> tuple[Notice, ...]:
        """Learn what the batch came to. After NO_ROOM and REJECTED the same tokens come again in a later plan."""
        if step is not self._in_flight:
            raise RuntimeError("completed() was given a step that is not in flight")
        self._in_flight = None
        by_id = {stream.job.id: stream for stream in self._running.values()}
        streams = [by_id[part.job_id] for part in step.parts]
        if outcome is DecodeOutcome.DONE:
            self._done(step, streams, elapsed_ns)
        ended = [stream for stream in streams if stream.ended]
        for stream in ended:
            self._leave(now, stream)
        if outcome is DecodeOutcome.NO_ROOM and not ended:
            self._no_room(now, streams, step)
        elif outcome is DecodeOutcome.REJECTED:
            self._rejected(now, streams)
        return self.notices()

    def _done(self, step: Step, streams: list[Stream], elapsed_ns: int) -> None:
        prefill_rows = guessed = 0
        for part, stream in zip(step.parts, streams, strict=True):
            assert stream.held is not None
            count = part.end - part.start
            if not part.is_prefill:
                stream.draft = tuple(row.token for row in step.rows[part.start + 1 : part.end])
                stream.drafted = count - 1
                guessed += count - 1
                self._cache.grow(stream.held, 1, guessed=count - 1)
            else:
                self._cache.grow(stream.held, count)
                prefill_rows += count
                prefilled = min(stream.held.ready, stream.job.prompt_tokens)
                if not stream.ended:
                    self._notices.append(Progress(stream.job.id, prefilled))
        decode_rows = len(step.rows) - prefill_rows
        self.rates.learn(
            decode_rows, prefill_rows, self.config.batch_max, elapsed_ns, is_beside=self._batches.read_last
        )
        self._counts["prefill_tokens"] += prefill_rows
        self._counts["decode_tokens"] += decode_rows - guessed
        self._batches.computed()

    def _no_room(self, now: int, streams: list[Stream], step: Step) -> None:
        """The cache is fuller than counted (somebody else used it): free idle cells, then give way."""
        self._counts["no_room"] += 1
        if self._cache.room.free_oldest(now):
            return
        if len(self._running) == 1 and len(step.rows) > 1:
            streams[0].chunk_max = len(step.rows) // 2
        else:
            self._give_way(now)

    def _rejected(self, now: int, streams: list[Stream]) -> None:
        """Find the job whose rows the model refuses by running each of the batch alone."""
        self._counts["rejected"] += 1
        if len(streams) > 1:
            self._batches.suspect(stream.job.id for stream in streams if not stream.ended)
            return
        (stream,) = streams
        if stream.ended:
            return
        self._batches.clear(stream.job.id)
        self._end(stream)
        self._leave(now, stream)
        self._notices.append(Broken(stream.job.id))

    def notices(self) -> tuple[Notice, ...]:
        """Notices not yet given out (each is given once, here or by `completed`)."""
        notices = tuple(self._notices)
        self._notices.clear()
        return notices

    # Embeddings

    def may_embed(self, now: int, cells: int) -> bool:
        """Whether a batch of `cells` embedding tokens may run now: low priority, room made for it.

        Free the cells afterwards and call `embedding_done`.
        """
        if self._in_flight is not None or (self._running and now < self._embedding_after):
            return False
        return self._cache.room.make(now, cells)

    def embedding_done(self, now: int, elapsed_ns: int) -> None:
        """An embedding batch took this long; while streams run the next waits four times as long."""
        self._embedding_after = now + int(elapsed_ns * (1 / EMBEDDING_SHARE - 1))

    # Numbers

    def load(self) -> Load:
        """How busy and how fast."""
        return Load(
            lanes=self.config.lanes,
            busy=len(self._running),
            queued=len(self._queue),
            queued_tokens=sum(stream.prefill_left for stream in self._streams.values()),
            prefill_rate=self.rates.prefill,
            decode_rate=self.rates.decode_alone,
            cells_used=self._cache.cells.used,
            cells_total=self._cells_total,
        )

    def counters(self) -> dict[str, float]:
        """Running totals and gauges by name, for metrics."""
        return {**dict.fromkeys(COUNTERS, 0.0), **self._counts, **self._cache.counters()}

    def held(self) -> tuple[HeldPrefix, ...]:
        """Prefixes that could be reused: running ones, then the newest."""
        return tuple(sorted(self._cache.report(), key=lambda held: (held.where != "running", -held.used_at)))
