"""The engine's inner loop without its socket: messages in, messages out, one step at a time.

The order of a step is scheduler.py's. Nothing here waits except `llama_decode`; images and constraints are prepared
on a thread and join when they are ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from saiserve import limits
from saiserve.engines.llamacpp.adapters import Adapters
from saiserve.engines.llamacpp.answer import NS, Answer, Clock
from saiserve.engines.llamacpp.binding import LlamaContext
from saiserve.engines.llamacpp.constraint import ConstraintBroken, ConstraintCompiler, ConstraintError, Matcher
from saiserve.engines.llamacpp.embedding import QUEUE_MAX, EmbeddingQueue
from saiserve.engines.llamacpp.job import Broken, Job, Notice, OutOfRoom, Started, Step
from saiserve.engines.llamacpp.job import Progress as Prefilled
from saiserve.engines.llamacpp.kv import DecodeOutcome
from saiserve.engines.llamacpp.prompting import PromptReader, PromptRefusal, PromptTokens, counted
from saiserve.engines.llamacpp.sampler import Sampler, SamplingError, sampling_fault
from saiserve.engines.llamacpp.scheduler import Scheduler
from saiserve.engines.llamacpp.threads import ThreadChooser
from saiserve.engines.llamacpp.timings import Timings
from saiserve.engines.llamacpp.vector_inputs import VectorInputs
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.messages import (
    Accepted,
    Cancel,
    Count,
    Embed,
    Failed,
    FailureKind,
    FinishReason,
    Generate,
    Heartbeat,
    Progress,
    RefusalReason,
    Refused,
    Tokens,
)

REPORT_S = 0.1
"""Time between full reports of load and counters while steps run."""
SIGN_OF_LIFE_S = 2.0
"""An answer that waits or prefills is heard of at least this often."""

PREPARING_MAX = 64
"""Requests whose images wait to be encoded, or constraints to be compiled; the next is refused."""


class Worker:
    """All answers of one model."""

    def __init__(
        self,
        *,
        context: LlamaContext,
        vocabulary: Vocabulary,
        reader: PromptReader,
        vector_inputs: VectorInputs,
        adapters: Adapters,
        compiler: ConstraintCompiler,
        scheduler: Scheduler,
        context_tokens: int,
        threads: ThreadChooser,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_ready` is called from another thread when a request is prepared: `step` has work then."""
        self._context = context
        self._vocabulary = vocabulary
        self._reader = reader
        self._vector_inputs = vector_inputs
        self._adapters = adapters
        self._compiler = compiler
        self._scheduler = scheduler
        self._context_tokens = context_tokens
        self._threads = threads
        self._on_ready = on_ready
        self._answers: dict[str, Answer] = {}
        self._preparing: dict[str, tuple[Generate | Count, Future[tuple[PromptTokens, Matcher | None]]]] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._embeddings = EmbeddingQueue(context)
        self._out: list[msgspec.Struct] = []
        self._timings = Timings()
        self._reported_at = 0
        self._signed_at = 0

    def take_messages(self) -> list[msgspec.Struct]:
        """Messages to send, in order; each is given once."""
        messages, self._out = self._out, []
        return messages

    @property
    def has_work(self) -> bool:
        """Whether `step` may have something to compute now."""
        prepared = any(future.done() for _, future in self._preparing.values())
        return bool(self._answers or len(self._embeddings) or prepared or self._scheduler.has_chores)

    # Messages

    def handle(self, message: Generate | Cancel | Count | Embed, now: int) -> None:
        """Take one message from the node."""
        match message:
            case Generate():
                self._generate(message, now)
            case Cancel():
                self._cancel(message.id, now)
            case Count():
                self._count(message)
            case Embed():
                self._embed(message)

    def _generate(self, request: Generate, now: int) -> None:
        try:
            if request.id in self._answers or request.id in self._preparing:
                raise PromptRefusal(RefusalReason.BAD_REQUEST, f"a request with id {request.id} is running")  # noqa: TRY301
            fault = sampling_fault(request.sampling, self._vocabulary.size)
            if fault is not None:
                raise PromptRefusal(RefusalReason.BAD_REQUEST, fault)  # noqa: TRY301
            for token in request.resume_tokens:
                if not 0 <= token < self._vocabulary.size:
                    raise PromptRefusal(RefusalReason.BAD_REQUEST, f"resume token {token} is unknown")  # noqa: TRY301
            self._adapters.name_in(request.model)
            prompt = self._reader.read(request.prompt)
        except PromptRefusal as refusal:
            self._refuse(request.id, refusal.reason, str(refusal))
            return
        if self._is_too_long(request.id, prompt):
            return
        if request.constraint is None and not prompt.parts:
            self._admit(request, prompt, None, now)
        elif len(self._preparing) >= PREPARING_MAX:
            self._refuse(request.id, RefusalReason.BUSY, "too many requests are being prepared", retry_after_s=1.0)
        else:
            self._prepare_later(request, prompt)

    def _is_too_long(self, request_id: str, prompt: PromptTokens) -> bool:
        if len(prompt.ids) < self._context_tokens:
            return False
        self._refuse(
            request_id,
            RefusalReason.TOO_LONG,
            f"the prompt has {len(prompt.ids)} tokens; the context holds {self._context_tokens}",
            prompt_tokens=len(prompt.ids),
        )
        return True

    def _prepare_later(self, request: Generate | Count, prompt: PromptTokens) -> None:
        future = self._pool.submit(self._prepare, request, prompt)
        self._preparing[request.id] = (request, future)
        future.add_done_callback(lambda _done: self._on_ready())

    def _prepare(self, request: Generate | Count, prompt: PromptTokens) -> tuple[PromptTokens, Matcher | None]:
        """On the pool's thread: images are encoded, constraints compiled."""
        whole = self._reader.complete(prompt)
        if isinstance(request, Count) or request.constraint is None:
            return whole, None
        return whole, self._compiler.compile(request.constraint, request.resume_tokens)

    def _join_prepared(self, now: int) -> None:
        for request_id in [one for one, (_, future) in self._preparing.items() if future.done()]:
            request, future = self._preparing.pop(request_id)
            try:
                prompt, matcher = future.result()
            except ConstraintError as error:
                kind = request.constraint.kind if isinstance(request, Generate) and request.constraint else ""
                self._refuse(request_id, RefusalReason.BAD_SCHEMA, f"the {kind} cannot be enforced: {error}")
            except PromptRefusal as refusal:
                self._refuse(request_id, refusal.reason, str(refusal))
            else:
                if isinstance(request, Count):
                    self._send(counted(request, prompt, self._vocabulary))
                elif not self._is_too_long(request_id, prompt):
                    self._admit(request, prompt, matcher, now)

    def _admit(self, request: Generate, prompt: PromptTokens, matcher: Matcher | None, now: int) -> None:
        room = self._context_tokens - len(prompt.ids)
        most = room if request.max_tokens is None else max(0, min(request.max_tokens, room))
        text_ids = (
            tuple(token for token in prompt.ids if token < self._vocabulary.size) if prompt.images else prompt.ids
        )
        answer = Answer(
            request=request,
            prompt=prompt,
            sampler=Sampler(request.sampling, self._vocabulary, text_ids, request.resume_tokens),
            matcher=matcher,
            max_tokens=most,
            clock=Clock(submitted_at=now, told_at=now),
        )
        answer.resume(self._vocabulary)
        adapter = self._adapters.name_in(request.model)
        job = Job(
            id=request.id,
            tokens=prompt.ids + request.resume_tokens,
            prompt_tokens=len(prompt.ids),
            max_tokens=max(1, most - answer.count),
            priority=max(-100, min(100, request.priority)),
            isolation=f"{adapter}\x00{prompt.salt}{request.isolation}",
            adapter=adapter,
            boundaries=prompt.boundaries,
        )
        cached = self._scheduler.cached_tokens(job)
        if answer.end is None:
            try:
                refusal = self._scheduler.submit(now, job)
            except ValueError as error:
                self._refuse(request.id, RefusalReason.TOO_LONG, str(error), prompt_tokens=len(prompt.ids))
                return
            if refusal is not None:
                self._refuse(request.id, RefusalReason.BUSY, "the queue is full", retry_after_s=refusal.wait_s)
                return
        answer.cached_tokens = cached
        self._send(Accepted(request.id, len(prompt.ids), cached, self._scheduler.load(), most))
        if answer.end is None:
            self._answers[request.id] = answer
        else:
            self._send(answer.finished(now, self._scheduler.load()))

    def _cancel(self, request_id: str, now: int) -> None:
        if self._answers.pop(request_id, None) is not None:
            self._scheduler.cancel(now, request_id)
        preparing = self._preparing.pop(request_id, None)
        if preparing is not None:
            preparing[1].cancel()
        self._embeddings.cancel(request_id)

    def _count(self, request: Count) -> None:
        try:
            prompt = self._reader.read(request.prompt)
        except PromptRefusal as refusal:
            self._refuse(request.id, refusal.reason, str(refusal))
            return
        if prompt.parts:
            self._prepare_later(request, prompt)
        else:
            self._send(counted(request, prompt, self._vocabulary))

    def _embed(self, request: Embed) -> None:
        if len(self._embeddings) >= QUEUE_MAX:
            self._refuse(request.id, RefusalReason.BUSY, "the embedding queue is full", retry_after_s=1.0)
            return
        try:
            self._adapters.name_in(request.model)
            pooling, inputs = self._vector_inputs.read(request)
        except PromptRefusal as refusal:
            self._refuse(request.id, refusal.reason, str(refusal), prompt_tokens=refusal.prompt_tokens)
            return
        self._embeddings.add(request, pooling, inputs)

    # Steps

    def step(self, now: int) -> bool:
        """Compute one batch if there is one; False when there was nothing to do."""
        started = time.perf_counter_ns()
        self._join_prepared(now)
        plan = self._scheduler.plan(now)
        self._notify(self._scheduler.notices(), now)
        if plan is None:
            self._timings.rest()
            return self._embed_next(now) or self._scheduler.has_moved
        self._context.use_threads(self._threads.threads)
        decode_started = time.perf_counter_ns()
        self._adapters.apply(self._context, plan.adapter)
        outcome = self._context.decode(plan.rows)
        decode_ns = time.perf_counter_ns() - decode_started
        if outcome is DecodeOutcome.DONE:
            self._threads.observe(len(plan.rows), decode_ns / NS)
        now += time.perf_counter_ns() - started
        self._notify(self._scheduler.completed(now, plan, outcome, decode_ns), now)
        sampling_started = time.perf_counter_ns()
        if outcome is DecodeOutcome.DONE:
            self._sample(plan, now)
        sampling_ns = time.perf_counter_ns() - sampling_started
        self._embed_next(now)
        self.report(now)
        self._timings.step(
            started_at=started,
            ended_at=time.perf_counter_ns(),
            llama_ns=decode_ns,
            sampling_ns=sampling_ns,
            rows=len(plan.rows),
        )
        return True

    def _sample(self, plan: Step, now: int) -> None:
        for sample in plan.samples:
            answer = self._answers.get(sample.job_id)
            if answer is None or not self._scheduler.wants(sample.job_id):
                continue
            try:
                drawn = answer.draw(self._context.logits(sample.row), sample.position)
                if answer.clock.first_token_at == 0:
                    answer.clock.first_token_at = now
                    self._timings.first_token.add(now - answer.clock.submitted_at)
                if drawn.token in self._vocabulary.end_tokens:
                    answer.end = FinishReason.STOP
                else:
                    piece = self._vocabulary.piece(drawn.token)
                    answer.take(drawn.token, piece)
                    logprobs = None if drawn.logprob is None else (drawn.logprob,)
                    self._send(Tokens(sample.job_id, (drawn.token,), piece, logprobs))
            except (SamplingError, ConstraintBroken) as error:
                self._fail(sample.job_id, str(error), now)
                continue
            if answer.end is None:
                self._scheduler.sampled(sample.job_id, drawn.token)
            else:
                self._scheduler.finish(now, sample.job_id)
                self._end(answer, now)

    def _embed_next(self, now: int) -> bool:
        cells = self._embeddings.next_cells()
        if cells == 0 or self._scheduler.embedding_turn(now, cells) is None:
            return False
        started = time.perf_counter_ns()
        self._adapters.apply(self._context, self._adapters.name_in(self._embeddings.next_model))
        answer = self._embeddings.run()
        elapsed = time.perf_counter_ns() - started
        self._scheduler.embedding_done(now + elapsed, elapsed)
        if answer is not None:
            self._send(answer)
        return True

    def _notify(self, notices: Iterable[Notice], now: int) -> None:
        for notice in notices:
            answer = self._answers.get(notice.job_id)
            if answer is None:
                continue
            match notice:
                case Started(again=False):
                    answer.clock.started_at = now
                    self._timings.queued.add(now - answer.clock.submitted_at)
                    answer.cached_tokens = notice.cached_tokens
                    answer.prefilled = notice.cached_tokens
                case Prefilled():
                    answer.prefilled = notice.prefilled
                    self._tell(answer, now)
                case OutOfRoom():
                    answer.end = FinishReason.LENGTH
                    self._end(answer, now)
                case Broken():
                    self._fail(notice.job_id, "the model refused to compute this request's tokens", now)
                case _:
                    pass

    # Replies

    def report(self, now: int) -> None:
        """A heartbeat, and signs of life for answers that wait; at most every `REPORT_S`."""
        if now - self._reported_at < REPORT_S * NS:
            return
        self._reported_at = now
        self._send(Heartbeat(self._scheduler.load(), self._timings.steps, self._counters()))
        if now - self._signed_at >= SIGN_OF_LIFE_S * NS:
            self._signed_at = now
            for answer in self._answers.values():
                if now - answer.clock.told_at >= SIGN_OF_LIFE_S * NS and answer.clock.first_token_at == 0:
                    self._tell(answer, now)

    def _counters(self) -> dict[str, float]:
        return {
            **self._scheduler.counters(),
            **self._timings.counters(),
            "threads": float(self._threads.threads),
            "embeddings_waiting": float(len(self._embeddings)),
        }

    def _tell(self, answer: Answer, now: int) -> None:
        answer.clock.told_at = now
        self._send(Progress(answer.request.id, answer.prefilled))

    def _end(self, answer: Answer, now: int) -> None:
        self._answers.pop(answer.request.id, None)
        self._send(answer.finished(now, self._scheduler.load()))

    def _fail(self, request_id: str, detail: str, now: int) -> None:
        self._answers.pop(request_id, None)
        self._scheduler.cancel(now, request_id)
        self._send(Failed(request_id, FailureKind.INTERNAL, detail))

    def _refuse(
        self,
        request_id: str,
        reason: RefusalReason,
        detail: str,
        *,
        prompt_tokens: int = 0,
        retry_after_s: float = 0.0,
    ) -> None:
        load = self._scheduler.load()
        self._send(
            Refused(
                request_id,
                reason,
                detail,
                load,
                prompt_tokens,
                self._context_tokens,
                min(retry_after_s, limits.QUEUE_S),
            )
        )

    def _send(self, message: msgspec.Struct) -> None:
        self._out.append(message)
