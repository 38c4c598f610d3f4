"""Requests on their way in: read and checked at once; images encoded and constraints compiled on a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from saiserve.engines.llamacpp.adapters import Adapters
from saiserve.engines.llamacpp.constraint import ConstraintCompiler, ConstraintError, Matcher
from saiserve.engines.llamacpp.prompting import PromptReader, PromptRefusal, PromptTokens
from saiserve.engines.llamacpp.sampling_bounds import sampling_fault
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.messages import Count, Generate, RefusalReason

PREPARING_MAX = 64
"""Requests whose images wait to be encoded, or constraints to be compiled; the next is refused."""

Refuse = Callable[[str, PromptRefusal], None]


class Ready(NamedTuple):
    """A request with its whole prompt, and what its answer must match."""

    request: Generate | Count
    prompt: PromptTokens
    matcher: Matcher | None


class Intake:
    """What comes in, until it is ready or refused."""

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        reader: PromptReader,
        adapters: Adapters,
        compiler: ConstraintCompiler,
        context_tokens: int,
        refuse: Refuse,
        on_ready: Callable[[], None],
    ) -> None:
        """`refuse` is told which request and why; `on_ready` is called from another thread when one is prepared."""
        self._vocabulary = vocabulary
        self._reader = reader
        self._adapters = adapters
        self._compiler = compiler
        self._context_tokens = context_tokens
        self._refuse = refuse
        self._on_ready = on_ready
        self._ready: deque[Ready] = deque()
        self._preparing: dict[str, tuple[Generate | Count, Future[tuple[PromptTokens, Matcher | None]]]] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prepare")

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._preparing

    @property
    def has_prepared(self) -> bool:
        """Whether `take_ready` would find more than was ready at once."""
        return any(future.done() for _, future in self._preparing.values())

    def add(self, request: Generate | Count) -> None:
        """Read a request; refused, ready, or ready later."""
        try:
            if isinstance(request, Generate):
                self._check(request)
            prompt = self._reader.read(request.prompt)
            constraint = None
            if isinstance(request, Generate):
                self._check_length(prompt)
                constraint = request.constraint
            if constraint is None and not prompt.parts:
                self._ready.append(Ready(request, prompt, None))
            elif len(self._preparing) >= PREPARING_MAX:
                raise PromptRefusal(RefusalReason.BUSY, "too many requests are being prepared")  # noqa: TRY301
            else:
                self._prepare_later(request, prompt)
        except PromptRefusal as refusal:
            self._refuse(request.id, refusal)

    def take_ready(self) -> list[Ready]:
        """Requests that became ready, each given once; those that turned out to be unfit are refused here."""
        for request_id in [one for one, (_, future) in self._preparing.items() if future.done()]:
            self._join(request_id)
        ready, self._ready = list(self._ready), deque()
        return ready

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
        count = len(prompt.ids)
        if count >= self._context_tokens:
            raise PromptRefusal(
                RefusalReason.TOO_LONG,
                f"the prompt has {count} tokens; the context holds {self._context_tokens}",
                prompt_tokens=count,
            )

    def _prepare_later(self, request: Generate | Count, prompt: PromptTokens) -> None:
        future = self._pool.submit(self._prepare, request, prompt)
        self._preparing[request.id] = (request, future)
        future.add_done_callback(lambda _done: self._on_ready())

    def _prepare(self, request: Generate | Count, prompt: PromptTokens) -> tuple[PromptTokens, Matcher | None]:
        """On the pool's thread."""
        whole = self._reader.complete(prompt)
        if isinstance(request, Count) or request.constraint is None:
            return whole, None
        return whole, self._compiler.compile(request.constraint, request.resume_tokens)

    def _join(self, request_id: str) -> None:
        request, future = self._preparing.pop(request_id)
        try:
            prompt, matcher = future.result()
            if isinstance(request, Generate):
                self._check_length(prompt)
        except ConstraintError as error:
            kind = request.constraint.kind if isinstance(request, Generate) and request.constraint else ""
            sentence = f"the {kind} cannot be enforced: {error}"
            self._refuse(request_id, PromptRefusal(RefusalReason.BAD_SCHEMA, sentence))
        except PromptRefusal as refusal:
            self._refuse(request_id, refusal)
        else:
            self._ready.append(Ready(request, prompt, matcher))
