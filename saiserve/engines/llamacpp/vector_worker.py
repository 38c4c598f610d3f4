"""The loop of a model that makes vectors or ranks documents and does not generate: worker.py's shape, another heart."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import msgspec

from saiserve import limits
from saiserve.engines.llamacpp.embedding import QUEUE_MAX, Pending
from saiserve.engines.llamacpp.guard import Guard
from saiserve.engines.llamacpp.pooling import Vectors
from saiserve.engines.llamacpp.prompting import PromptReader, PromptRefusal, counted
from saiserve.engines.llamacpp.vector_context import VectorContext
from saiserve.engines.llamacpp.vector_inputs import VectorInputs
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.messages import (
    Cancel,
    Count,
    Embed,
    Failed,
    FailureKind,
    Generate,
    Heartbeat,
    Load,
    RefusalReason,
    Refused,
)

REPORT_NS = 100_000_000
"""Between reports of load while there is work."""
SIGN_OF_LIFE_NS = 2_000_000_000
"""Requests that wait for vectors are heard of this often while any are computed."""
RATE_WEIGHT = 0.2
"""Share of the newest batch in the running mean of the speed."""


class VectorWorker:
    """All requests of one such model, in order of arrival; short inputs of several requests share a batch.

    An unexpected error ends the request it happened to, and no other.
    """

    def __init__(
        self, *, context: VectorContext, vocabulary: Vocabulary, reader: PromptReader, inputs: VectorInputs
    ) -> None:
        self._context = context
        self._vocabulary = vocabulary
        self._reader = reader
        self._inputs = inputs
        self._waiting: deque[Pending] = deque()
        self._guard = Guard(self._fail)
        self._out: list[msgspec.Struct] = []
        self._reported_at = 0
        self._signed_at = 0
        self._signed_steps = 0
        """Steps when they were heard of last."""
        self._steps = 0
        self._tokens = 0
        self.rate = 0.0
        """Tokens per second."""

    def take_messages(self) -> list[msgspec.Struct]:
        """Messages to send, in order; each is given once."""
        messages, self._out = self._out, []
        return messages

    def due_messages(self, now: int) -> list[msgspec.Struct]:
        """The same: none of them waits."""
        return self.take_messages()

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to compute."""
        return bool(self._waiting)

    def handle(self, message: Generate | Cancel | Count | Embed, now: int) -> None:
        """Take one message from the node."""
        del now
        match message:
            case Generate():
                what = "ranks documents (/v1/rerank)" if self._context.ranks else "makes vectors (/v1/embeddings)"
                fault = PromptRefusal(RefusalReason.BAD_REQUEST, f"this model {what}; it does not generate text")
                self._refuse(message.id, fault)
            case Cancel():
                self._cancel(message.id)
            case Count():
                self._guard.request(message.id, self._count, message)
            case Embed():
                self._guard.request(message.id, self._embed, message)

    def _embed(self, request: Embed) -> None:
        if len(self._waiting) >= QUEUE_MAX:
            self._refuse(request.id, PromptRefusal(RefusalReason.BUSY, "the queue is full"), retry_after_s=1.0)
            return
        try:
            pooling, inputs = self._inputs.read(request)
        except PromptRefusal as refusal:
            self._refuse(request.id, refusal)
            return
        prompt_tokens = sum(map(len, inputs))
        self._waiting.append(Pending(request, pooling, deque(inputs), prompt_tokens, self._context.size))

    def _cancel(self, request_id: str) -> None:
        if self._waiting and self._waiting[0].request.id == request_id:
            self._context.end()
        self._waiting = deque(pending for pending in self._waiting if pending.request.id != request_id)

    def _count(self, request: Count) -> None:
        try:
            room = self._context.tokens_max + 1 if request.must_fit else None
            prompt = self._reader.complete(self._reader.read(request.prompt, room))
            answer = counted(request, prompt, self._vocabulary)
        except PromptRefusal as refusal:
            self._refuse(request.id, refusal)
            return
        self._out.append(answer)

    def step(self, now: int) -> bool:
        """Compute one batch; False when there is nothing to do."""
        if not self._waiting:
            return False
        batch = self._next_batch()
        pieces = [(tokens, start) for _, tokens, start in batch]
        began = time.perf_counter_ns()
        tokens = sum(len(piece) for piece, _ in pieces)
        results = self._guard.batch(tokens, self._context.compute, pieces)
        elapsed_s = max(time.perf_counter_ns() - began, 1) / 1e9
        if results is None:
            self._not_computed([pending for pending, _, _ in batch])
            return True
        self._steps += 1
        self._tokens += tokens
        rate = tokens / elapsed_s
        self.rate = rate if self.rate == 0 else self.rate + RATE_WEIGHT * (rate - self.rate)
        for (pending, piece, _), result in zip(batch, results, strict=True):
            self._guard.request(pending.request.id, self._take, pending, result, len(piece))
        if not any(pending.done for pending in self._waiting):
            self._context.end()
        while self._waiting and not self._waiting[0].inputs:
            pending = self._waiting.popleft()
            self._guard.request(pending.request.id, self._answer, pending)
        self.report(now)
        return True

    def _take(self, pending: Pending, vectors: Vectors, tokens: int) -> None:
        """Vectors of one piece; those of a request that failed with an earlier piece are for nobody."""
        if any(waiting is pending for waiting in self._waiting):
            pending.take(vectors, tokens)

    def _answer(self, pending: Pending) -> None:
        self._out.append(pending.answer())

    def _not_computed(self, batch: Sequence[Pending]) -> None:
        """Try the requests of a batch that failed one by one; who was alone in it is who it failed for."""
        self._context.end()
        first = batch[0]
        if all(pending is first for pending in batch):
            self._fail(first.request.id, "the model refused to compute this request's tokens")
        for pending in batch:
            pending.is_apart = True

    def _next_batch(self) -> list[tuple[Pending, tuple[int, ...], int]]:
        """Inputs from the front of the queue, as many as fit; or a piece of the first."""
        context = self._context
        first = self._waiting[0]
        if context.inputs_max == 1:
            piece = first.inputs[0][first.done : first.done + context.rows_max]
            return [(first, piece, first.done)]
        batch: list[tuple[Pending, tuple[int, ...], int]] = []
        left = context.rows_max
        for pending in self._waiting:
            if pending is not first and (first.is_apart or pending.is_apart):
                return batch
            for tokens in pending.inputs:
                if len(tokens) > left or len(batch) == context.inputs_max:
                    return batch
                batch.append((pending, tokens, 0))
                left -= len(tokens)
        return batch

    def _fail(self, request_id: str, detail: str) -> None:
        """End a request wherever it stands."""
        self._cancel(request_id)
        self._out.append(Failed(request_id, FailureKind.INTERNAL, detail))

    def report(self, now: int) -> None:
        """A heartbeat, at most every `REPORT_NS`, and signs of life."""
        self._signed_at = self._signed_at or now
        if now - self._signed_at >= SIGN_OF_LIFE_NS and self._steps > self._signed_steps:
            self._signed_at, self._signed_steps = now, self._steps
            self._out += [pending.sign() for pending in self._waiting]
        if now - self._reported_at < REPORT_NS:
            return
        self._reported_at = now
        counters = {"steps": float(self._steps), "prefill_tokens": float(self._tokens)}
        counters["embeddings_waiting"] = float(len(self._waiting))
        self._out.append(Heartbeat(self._load(), self._steps, counters))

    def _load(self) -> Load:
        return Load(
            lanes=1,
            busy=min(1, len(self._waiting)),
            queued=max(0, len(self._waiting) - 1),
            queued_tokens=sum(sum(map(len, pending.inputs)) for pending in self._waiting),
            prefill_rate=self.rate,
        )

    def _refuse(self, request_id: str, fault: PromptRefusal, *, retry_after_s: float = 0.0) -> None:
        numbers = fault.prompt_tokens, self._context.tokens_max, min(retry_after_s, limits.QUEUE_S), fault.index
        self._out.append(Refused(request_id, fault.reason, str(fault), self._load(), *numbers))
