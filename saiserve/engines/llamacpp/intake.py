"""Requests on their way in: read and checked; what takes long is done on threads.

Images are encoded and constraints compiled on one thread; constraints that may take seconds on another, and long texts
are tokenised on a third.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from saiserve.engines.llamacpp.adapters import Adapters
from saiserve.engines.llamacpp.constraint import ConstraintCompiler, ConstraintError, Matcher
from saiserve.engines.llamacpp.prompting import (
    TEXT_ON_LOOP,
    PromptReader,
    PromptRefusal,
    PromptTokens,
    counted,
    too_long,
)
from saiserve.engines.llamacpp.sampling_bounds import sampling_fault
from saiserve.engines.llamacpp.schema_cost import is_heavy
from saiserve.engines.llamacpp.vector_inputs import VectorInputs
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.messages import Constraint, Count, Counted, Embed, Generate, RefusalReason

PREPARING_MAX = 64
"""Requests whose images wait to be encoded, constraints to be compiled or texts to be tokenised; the next is refused."""

Refuse = Callable[[str, PromptRefusal], None]


class Ready(NamedTuple):
    """A request with its whole prompt, and what its answer must match."""

    request: Generate
    prompt: PromptTokens
    matcher: Matcher | None


class ReadyCount(NamedTuple):
    """A count with its answer."""

    request: Count
    answer: Counted


class ReadyVectors(NamedTuple):
    """A request for vectors, with how each is made and of which tokens."""

    request: Embed
    pooling: str
    inputs: list[tuple[int, ...]]


Request = Generate | Count | Embed
AnyReady = Ready | ReadyCount | ReadyVectors


class Intake:
    """What comes in, until it is ready or refused."""

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        reader: PromptReader,
        vector_inputs: VectorInputs,
        adapters: Adapters,
        compiler: ConstraintCompiler,
        context_tokens: int,
        refuse: Refuse,
        fail: Callable[[str, BaseException], None],
        on_ready: Callable[[], None],
    ) -> None:
        """`refuse` and `fail` are told which request and why; `on_ready` is called from another thread."""
        self._vocabulary = vocabulary
        self._reader = reader
        self._vector_inputs = vector_inputs
        self._adapters = adapters
        self._compiler = compiler
        self._context_tokens = context_tokens
        self._refuse = refuse
        self._fail = fail
        self._on_ready = on_ready
        self._ready: deque[AnyReady] = deque()
        self._preparing: dict[str, tuple[Request, Future[AnyReady]]] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._heavy = ThreadPoolExecutor(1, thread_name_prefix="compile")
        self._texts = ThreadPoolExecutor(1, thread_name_prefix="tokenise")

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._preparing

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come that was not given on."""
        return not (self._preparing or self._ready)

    @property
    def has_prepared(self) -> bool:
        """Whether `take_ready` would find more than was ready at once."""
        return any(future.done() for _, future in self._preparing.values())

    def add(self, request: Request) -> None:
        """Read a request; refused, ready, or ready later. What else it raises is the request's own fault or ours."""
        try:
            if isinstance(request, Embed):
                self._add_vectors(request)
            else:
                self._add_prompt(request)
        except PromptRefusal as refusal:
            self._refuse(request.id, refusal)

    def _add_prompt(self, request: Generate | Count) -> None:
        constraint = None
        if isinstance(request, Generate):
            self._check(request)
            constraint = request.constraint
            prompt = self._reader.read(request.prompt, self._context_tokens)
            self._check_length(prompt)
        else:
            prompt = self._reader.read(request.prompt, self._context_tokens if request.must_fit else None)
        if constraint is None and not prompt.parts:
            self._ready.append(self._as_ready(request, prompt))
            return
        self._later(self._pool_for(prompt, constraint), request, lambda: self._prepare(request, prompt))

    def _pool_for(self, prompt: PromptTokens, constraint: Constraint | None) -> ThreadPoolExecutor:
        if any(isinstance(part, bytes) for part in prompt.parts):
            return self._pool
        if constraint is None:
            return self._texts
        return self._heavy if is_heavy(constraint.body) else self._pool

    def _add_vectors(self, request: Embed) -> None:
        self._adapters.name_in(request.model)
        if sum(map(len, request.inputs)) > TEXT_ON_LOOP:
            self._later(self._texts, request, lambda: self._read_vectors(request))
        else:
            self._ready.append(self._read_vectors(request))

    def _read_vectors(self, request: Embed) -> ReadyVectors:
        return ReadyVectors(request, *self._vector_inputs.read(request))

    def take_ready(self) -> list[AnyReady]:
        """Requests that became ready, each given once; those that turned out to be unfit are refused here."""
        for request_id in [one for one, (_, future) in self._preparing.items() if future.done()]:
            self._join(request_id)
        ready, self._ready = list(self._ready), deque()
        return ready

    def reading(self) -> list[str]:
        """Requests for vectors whose texts are not read yet; answers are heard of otherwise."""
        return [one for one, (request, _) in self._preparing.items() if isinstance(request, Embed)]

    def cancel(self, request_id: str) -> None:
        """Forget a request that is being prepared."""
        preparing = self._preparing.pop(request_id, None)
        if preparing is not None:
            preparing[1].cancel()

    def _check(self, request: Generate) -> None:
        fault = sampling_fault(request.sampling, self._vocabulary.size)
        if fault is not None:
            raise PromptRefusal(RefusalReason.BAD_REQUEST, fault)
        for token in request.resume_tokens:
            if not 0 <= token < self._vocabulary.size:
                raise PromptRefusal(RefusalReason.BAD_REQUEST, f"resume token {token} is unknown")
        self._adapters.mix_of(request.model, request.sampling.lora)

    def _check_length(self, prompt: PromptTokens) -> None:
        if len(prompt.ids) >= self._context_tokens:
            raise too_long(len(prompt.ids), self._context_tokens)

    def _later(self, pool: ThreadPoolExecutor, request: Request, work: Callable[[], AnyReady]) -> None:
        if len(self._preparing) >= PREPARING_MAX:
            raise PromptRefusal(RefusalReason.BUSY, "too many requests are being prepared")
        future = pool.submit(work)
        self._preparing[request.id] = (request, future)
        future.add_done_callback(lambda _done: self._on_ready())

    def _as_ready(self, request: Generate | Count, prompt: PromptTokens) -> Ready | ReadyCount:
        if isinstance(request, Count):
            if request.must_fit:
                self._check_length(prompt)
            return ReadyCount(request, counted(request, prompt, self._vocabulary))
        return Ready(request, prompt, None)

    def _prepare(self, request: Generate | Count, prompt: PromptTokens) -> Ready | ReadyCount:
        """On a pool's thread."""
        whole = self._reader.complete(prompt)
        if isinstance(request, Count) or request.constraint is None:
            return self._as_ready(request, whole)
        self._check_length(whole)
        return Ready(request, whole, self._compiler.compile(request.constraint, request.resume_tokens))

    def _join(self, request_id: str) -> None:
        request, future = self._preparing.pop(request_id)
        try:
            ready = future.result()
            if isinstance(ready, Ready):
                self._check_length(ready.prompt)
        except ConstraintError as error:
            kind = request.constraint.kind if isinstance(request, Generate) and request.constraint else ""
            sentence = f"the {kind} cannot be enforced: {error}"
            self._refuse(request_id, PromptRefusal(RefusalReason.BAD_SCHEMA, sentence))
        except PromptRefusal as refusal:
            self._refuse(request_id, refusal)
        except BaseException as error:  # noqa: BLE001 - one request's, whatever it is: a panic of native code is no Exception
            self._fail(request_id, error)
        else:
            self._ready.append(ready)
