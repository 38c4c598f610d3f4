"""The engine's inner loop without its socket: messages in, messages out, one step at a time.

The order of a step is scheduler.py's. Nothing here waits except `llama_decode`; requests come ready from intake.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from saiserve.engines.llamacpp.adapters import Adapters
from saiserve.engines.llamacpp.answer import Answer
from saiserve.engines.llamacpp.batch_arrays import Logits
from saiserve.engines.llamacpp.beginning import begun
from saiserve.engines.llamacpp.binding import LlamaContext
from saiserve.engines.llamacpp.constraint import ConstraintBroken, ConstraintCompiler, Matcher
from saiserve.engines.llamacpp.embedding import QUEUE_MAX, EmbeddingQueue, Pending
from saiserve.engines.llamacpp.guard import Guard
from saiserve.engines.llamacpp.intake import AnyReady, Intake, ReadyCount, ReadyVectors
from saiserve.engines.llamacpp.job import Broken, Notice, OutOfRoom, Sample, Spoilt, Started, Step
from saiserve.engines.llamacpp.job import Progress as Prefilled
from saiserve.engines.llamacpp.kv import DecodeOutcome
from saiserve.engines.llamacpp.outbox import Outbox
from saiserve.engines.llamacpp.prompt_ends import PromptEnds
from saiserve.engines.llamacpp.prompting import PromptReader, PromptRefusal, PromptTokens
from saiserve.engines.llamacpp.sampler import NotANumberError, SamplingError
from saiserve.engines.llamacpp.scheduler import Scheduler
from saiserve.engines.llamacpp.spoilt import SpoiltCache, verdict
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
    RefusalReason,
    Tokens,
)
from saiserve.engines.waits import NS

logger = logging.getLogger("saiserve.engine")


class Worker:
    """All answers of one model. An unexpected error ends the request it happened to, and no other."""

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
        ends: PromptEnds,
        context_tokens: int,
        threads: ThreadChooser,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`ends` are the scheduler's. `on_ready` is called from another thread when a request is prepared."""
        self._context = context
        self._ends = ends
        self._vocabulary = vocabulary
        self._adapters = adapters
        self._scheduler = scheduler
        self._context_tokens = context_tokens
        self._threads = threads
        self._answers: dict[str, Answer] = {}
        self._guard = Guard(self._fail)
        self._timings = Timings()
        self._embeddings = EmbeddingQueue(context)
        self._out = Outbox(
            scheduler=scheduler,
            timings=self._timings,
            threads=threads,
            embeddings=self._embeddings,
            context_tokens=context_tokens,
        )
        self._intake = Intake(
            vocabulary=vocabulary,
            reader=reader,
            vector_inputs=vector_inputs,
            adapters=adapters,
            compiler=compiler,
            context_tokens=context_tokens,
            refuse=self._out.refuse,
            fail=self._guard.fault,
            on_ready=on_ready,
        )
        self._worked_until = 0
        self._spoilt = SpoiltCache(lanes=scheduler.config.lanes)
        self._now = 0
        """`now` of the last call."""

    def take_messages(self) -> list[msgspec.Struct]:
        """Messages to send, in order; each is given once."""
        return self._out.take()

    def due_messages(self, now: int) -> list[msgspec.Struct]:
        """The same, but tokens that more will follow in a moment are left for later."""
        return self._out.due(now)

    @property
    def has_work(self) -> bool:
        """Whether `step` may have something to compute now."""
        waiting = self._answers or len(self._embeddings) or self._intake.has_prepared
        return bool(waiting) or self._scheduler.has_chores

    # Messages

    def handle(self, message: Generate | Cancel | Count | Embed, now: int) -> None:
        """Take one message from the node."""
        self._now = now
        if isinstance(message, Cancel):
            self._cancel(message.id)
        else:
            self._guard.request(message.id, self._take_in, message)
        self._join_ready(now)

    def _take_in(self, request: Generate | Count | Embed) -> None:
        if request.id in self._answers or request.id in self._intake:
            fault = PromptRefusal(RefusalReason.BAD_REQUEST, f"a request with id {request.id} is running")
            self._out.refuse(request.id, fault)
        elif isinstance(request, Embed) and len(self._embeddings) >= QUEUE_MAX:
            self._out.refuse(request.id, PromptRefusal(RefusalReason.BUSY, "the embedding queue is full"))
        else:
            self._intake.add(request)

    def _join_ready(self, now: int) -> None:
        for ready in self._intake.take_ready():
            self._guard.request(ready.request.id, self._begin, ready, now)

    def _begin(self, ready: AnyReady, now: int) -> None:
        if isinstance(ready, ReadyVectors):
            self._embeddings.add(*ready)
        elif isinstance(ready, ReadyCount):
            self._out.send(ready.answer)
        else:
            self._admit(ready.request, ready.prompt, ready.matcher, now)

    def _admit(self, request: Generate, prompt: PromptTokens, matcher: Matcher | None, now: int) -> None:
        adapter = self._adapters.mix_of(request.model, request.sampling.lora)
        answer, job = begun(request, prompt, matcher, self._vocabulary, self._context_tokens, adapter=adapter, now=now)
        cached = self._scheduler.cached_tokens(job)
        if answer.end is None:
            try:
                refusal = self._scheduler.submit(now, job)
            except ValueError as error:
                fault = PromptRefusal(RefusalReason.TOO_LONG, str(error), prompt_tokens=len(prompt.ids))
                self._out.refuse(request.id, fault)
                return
            if refusal is not None:
                self._out.refuse(request.id, PromptRefusal(RefusalReason.BUSY, "the queue is full"), refusal.wait_s)
                return
        answer.cached_tokens = cached
        self._out.send(Accepted(request.id, len(prompt.ids), cached, self._scheduler.load(), answer.max_tokens))
        if answer.end is None:
            self._answers[request.id] = answer
        else:
            self._out.finish(answer, now)

    def _cancel(self, request_id: str) -> None:
        self._answers.pop(request_id, None)
        self._scheduler.cancel(self._now, request_id)
        self._intake.cancel(request_id)
        self._embeddings.cancel(request_id)

    # Steps

    def step(self, now: int) -> bool:
        """Compute one batch if there is one; False when there was nothing to do.

        Raises:
            CacheSpoiltError: nobody's output is a number.
        """
        self._now = now
        if self._spoilt.is_spoilt:
            self._start_over(now)
        started = time.perf_counter_ns()
        work_started = self._worked_until or time.thread_time_ns()
        self._join_ready(now)
        plan = self._scheduler.plan(now)
        began = self._notify(self._scheduler.notices(), now)
        if plan is None:
            self._timings.rest()
            self._worked_until = 0
            embedded = self._embed_next(now)
            self.report(now)  # vectors may take minutes in which nothing else is said
            return embedded or self._scheduler.has_moved or began
        self._context.use_threads(self._threads.threads)
        decode_started, work = time.perf_counter_ns(), time.thread_time_ns()
        outcome = self._decode(plan)
        decode_ns = time.perf_counter_ns() - decode_started
        decode_work = time.thread_time_ns() - work
        if outcome is DecodeOutcome.DONE:
            self._threads.observe(len(plan.rows), decode_ns / NS)
        now += time.perf_counter_ns() - started
        self._notify(self._scheduler.completed(now, plan, outcome, decode_ns), now)
        sampling_started = time.perf_counter_ns()
        if outcome is DecodeOutcome.DONE:
            self._sample(plan, now)
        sampling_ns = time.perf_counter_ns() - sampling_started
        self._embed_next(now)
        if not (self._scheduler.only_decodes and self._intake.is_empty) or len(self._embeddings):
            self._out.hurry()  # the next step may be a long one
        self.report(now)
        self._worked_until = time.thread_time_ns()
        self._timings.step(
            started_at=started,
            ended_at=time.perf_counter_ns(),
            llama_ns=decode_ns,
            sampling_ns=sampling_ns,
            python_ns=self._worked_until - work_started - decode_work,
            rows=len(plan.rows),
        )
        return True

    def _decode(self, plan: Step) -> DecodeOutcome:
        """Compute a batch; an error counts as one the model refuses, so that each of its requests is tried alone."""
        outcome = self._guard.batch(len(plan.rows), self._compute, plan)
        return DecodeOutcome.REJECTED if outcome is None else outcome

    def _compute(self, plan: Step) -> DecodeOutcome:
        self._adapters.apply(self._context, plan.adapter)
        return self._context.decode(plan.rows)

    def _sample(self, plan: Step, now: int) -> None:
        for sample in plan.samples:
            if self._spoilt.is_spoilt:  # they are all computed again
                return
            answer = self._answers.get(sample.job_id)
            if answer is None or not self._scheduler.wants(sample.job_id):
                continue
            self._guard.request(sample.job_id, self._draw_row, answer, sample, now)

    def _draw_row(self, answer: Answer, sample: Sample, now: int) -> None:
        logits, end_key = self._context.logits(sample.row), answer.end_key
        if end_key:
            self._ends.keep(end_key, logits)
        self._draw(answer, logits, sample.position, now)

    def _draw(self, answer: Answer, logits: Logits, position: int, now: int) -> None:
        """The next token of an answer; it goes on, or ends."""
        request_id, answer.end_key = answer.request.id, b""
        is_first = answer.clock.first_token_at == 0
        try:
            drawn = answer.draw(logits, position)
            self._spoilt.is_number()
            answer.probation -= answer.probation > 0
            if is_first:
                answer.clock.first_token_at = now
                self._timings.first_token.add(now - answer.clock.submitted_at)
            if drawn.token in self._vocabulary.end_tokens:
                answer.end = FinishReason.STOP
            else:
                piece = self._vocabulary.piece(drawn.token)
                answer.take(drawn.token, piece)
                logprobs = None if drawn.logprob is None else (drawn.logprob,)
                self._out.send_token(Tokens(request_id, (drawn.token,), piece, logprobs), is_first=is_first)
        except NotANumberError as error:
            self._not_a_number(answer, str(error), self._mix(answer))
            return
        except ConstraintBroken as error:
            self._fail(request_id, str(error), FailureKind.BAD_REQUEST if error.is_own else FailureKind.INTERNAL)
            return
        except SamplingError as error:
            self._fail(request_id, str(error))
            return
        if answer.end is None:
            self._scheduler.sampled(request_id, drawn.token)
        else:
            self._scheduler.finish(now, request_id)
            self._end(answer, now)

    def _mix(self, answer: Answer) -> str:
        return self._adapters.mix_of(answer.request.model, answer.request.sampling.lora)

    def _not_a_number(self, computed: Answer | Pending, detail: str, mix: str) -> None:
        """What a request was computed on, or what it was computed with, is no number: see decision 0160."""
        failure = self._spoilt.judge(computed, detail, mix, self._scheduler.suspects)
        if failure is not None:
            self._fail(computed.request.id, *failure)

    def _start_over(self, now: int) -> None:
        """Clear the cache; what runs is computed again.

        Raises:
            CacheSpoiltError: that has not helped before.
        """
        is_explained = self._spoilt.clear()
        logger.warning("an output was not a number: the KV cache is cleared")
        self._ends.clear()
        self._embeddings.start_over()
        self._scheduler.start_over(now, is_explained=is_explained)
        self._notify(self._scheduler.notices(), now)

    def _embed_next(self, now: int) -> bool:
        cells = 0 if self._spoilt.is_spoilt else self._embeddings.next_cells()
        if cells == 0 or not self._scheduler.may_embed(now, cells):
            return False
        started = time.perf_counter_ns()
        pending = self._embeddings.next
        self._guard.request(pending.request.id, self._run_embedding, pending)
        elapsed = time.perf_counter_ns() - started
        self._scheduler.embedding_done(now + elapsed, elapsed)
        return True

    def _run_embedding(self, pending: Pending) -> None:
        mix = self._adapters.name_in(pending.request.model)
        self._adapters.apply(self._context, mix)
        try:
            answer = self._embeddings.run()
        except NotANumberError as error:
            self._not_a_number(pending, str(error), mix)
            return
        if answer is not None:
            self._spoilt.is_number()
            self._out.send(answer)

    def _notify(self, notices: Iterable[Notice], now: int) -> bool:
        """Tell answers what became of them; whether one drew its first token without any computing."""
        began = False
        for notice in notices:
            answer = self._answers.get(notice.job_id)
            if answer is not None:
                began |= isinstance(notice, Started) and not notice.again and self._scheduler.wants(notice.job_id)
                self._guard.request(notice.job_id, self._take_notice, notice, answer, now)
        return began

    def _take_notice(self, notice: Notice, answer: Answer, now: int) -> None:
        match notice:
            case Started(again=False):
                answer.clock.started_at = now
                self._timings.queued.add(now - answer.clock.submitted_at)
                answer.cached_tokens = notice.cached_tokens
                answer.prefilled = notice.cached_tokens
                if self._scheduler.wants(notice.job_id):
                    self._draw(answer, self._ends.take(answer.end_key), answer.known_tokens, now)
            case Prefilled():
                answer.prefilled = notice.prefilled
                self._out.progress(answer, now)
            case OutOfRoom():
                answer.end = FinishReason.LENGTH
                self._end(answer, now)
            case Broken():
                self._fail(notice.job_id, "the model refused to compute this request's tokens")
            case Spoilt():
                detail = "outputs were not numbers again and again while this request was computed"
                mix = "" if answer.count else self._mix(answer)  # with these scales it has drawn tokens before
                self._fail(notice.job_id, *verdict(detail, mix, notice.suspects))
            case _:
                pass

    # Replies

    def report(self, now: int) -> None:
        """Say how the engine is, at most every `outbox.REPORT_S`."""
        self._out.report(now, self._answers.values(), self._intake.reading())

    def _end(self, answer: Answer, now: int) -> None:
        self._answers.pop(answer.request.id, None)
        self._out.finish(answer, now)

    def _fail(self, request_id: str, detail: str, kind: FailureKind = FailureKind.INTERNAL) -> None:
        """End a request wherever it stands, and give back what it holds."""
        self._cancel(request_id)
        self._out.send(Failed(request_id, kind, detail))
