"""A node as the dialects see it: see `saiserve.api.service.Service`."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import trio

from saiserve import limits
from saiserve.api.prepare import prepare
from saiserve.api.service import Answer, ModelCard
from saiserve.channels import nothing
from saiserve.chat.events import AnswerEvent, AnswerFailed, Usage
from saiserve.chat.prompt import prompt_of
from saiserve.chat.request import GenerationRequest
from saiserve.chat.template_ways import ways_numbered
from saiserve.dispatch.clock import clock_ns
from saiserve.dispatch.dispatcher import Answer as DispatchedAnswer
from saiserve.dispatch.ports import Fitted
from saiserve.dispatch.refusals import final_error, passing_error
from saiserve.engines.engine import Heard, HopError
from saiserve.engines.messages import Count, Counted, Embed, Embedded, Refused
from saiserve.engines.spoken import Source
from saiserve.errors import ApiError, ErrorKind
from saiserve.fleet.facts import ModelState
from saiserve.logs import ROUTE_LOGGER
from saiserve.metering.metrics import Tally
from saiserve.node import Node
from saiserve.node_names import later_cards
from saiserve.residency.resident import Resident
from saiserve.routing.candidate import Placement, RoutingRequest
from saiserve.routing.explain import attempts_text

route_log = logging.getLogger(ROUTE_LOGGER)

SIDE_QUESTION_S = 60.0
"""Longest wait for a count at one place, and for a sign that embeddings move on there."""


class _Watched:
    """An answer's events, remembering how it ended: done, failed, or cancelled when it never ended."""

    def __init__(self, events: AsyncIterator[AnswerEvent]) -> None:
        self._events = events
        self._receive_nowait: Callable[[], AnswerEvent] = getattr(events, "receive_nowait", nothing)
        self.outcome = "cancelled"

    def __aiter__(self) -> AsyncIterator[AnswerEvent]:
        return self

    async def __anext__(self) -> AnswerEvent:
        return self._noted(await anext(self._events))

    def receive_nowait(self) -> AnswerEvent:
        """The next event, if it has come.

        Raises:
            trio.WouldBlock: it has not, or that cannot be told.
            trio.EndOfChannel: there is none.
        """
        return self._noted(self._receive_nowait())

    def _noted(self, event: AnswerEvent) -> AnswerEvent:
        if isinstance(event, Usage):
            self.outcome = "done"
        elif isinstance(event, AnswerFailed):
            self.outcome = "failed"
        return event


def _with_file(card: ModelCard, resident: Resident) -> ModelCard:
    """The card with what only a node that has the model's file knows."""
    progress = resident.progress(trio.current_time()) if resident.state is ModelState.LOADING else None
    card = replace(
        card,
        size_bytes=resident.size_bytes,
        chat_template=resident.chat_template,
        path=resident.path.name if resident.path is not None else "",
        progress=progress,
    )
    facts = resident.facts
    if facts is None:
        return card
    return replace(
        card,
        parameters=facts.parameters,
        vocabulary=facts.vocabulary_size,
        embedding_length=facts.embedding_size,
        template_caps=facts.template_caps,
    )


async def _patiently(
    ask: Callable[[Source, Heard], Awaitable[Counted | Embedded | Refused]],
    engine: Source,
    wait_s: float,
    end_at: float,
) -> Counted | Embedded | Refused:
    """Put a question to one place, which may take its time until `end_at` as long as it moves on.

    Raises:
        HopError: the way there broke.
        trio.TooSlowError: nothing was heard of it for `wait_s`, or it is not done at `end_at`.
    """
    with trio.fail_at(end_at) as scope:

        def heard() -> None:
            scope.deadline = min(trio.current_time() + wait_s, end_at)

        heard()
        return await ask(engine, heard)


class NodeService:
    """Answers, counts and pictures, made by one node."""

    def __init__(self, node: Node, tally: Tally, *, started_at: int) -> None:
        self._node = node
        self._tally = tally
        self._started_at = started_at
        node.dispatcher.fit = self._fit

    def _fit(self, request: GenerationRequest, model: str) -> Fitted | None:
        """Fit a request to the model that was chosen, unless it was fitted to that one as it came in."""
        if model == request.model and not self._node.is_fitted_later(model):
            return None
        card = next((card for card in self.models() if card.id == model and not card.is_fitted_later), None)
        prepared = prepare(request.original or request, card, lambda: f"call_{secrets.token_hex(12)}")
        return Fitted(prepared.request, prepared.parse)

    @asynccontextmanager
    async def answer(self, request: GenerationRequest) -> AsyncIterator[Answer]:
        """Start an answer; see `Service.answer`."""
        self._refuse_when_draining()
        request = replace(request, model=self._node.resolve(request.model))
        try:
            async with self._node.dispatcher.answer(request) as answer:
                watched = _Watched(answer.events)
                try:
                    yield Answer(watched, answer.route)
                finally:
                    self._record(request, answer, watched.outcome)
        except ApiError as error:
            if error.kind is not ErrorKind.MODEL_NOT_FOUND:
                self._tally.add(request.model, "refused")
            route_log.info("request %s key=%s model=%s refused: %s", request.id, request.key_name, request.model, error)
            raise

    def _record(self, request: GenerationRequest, answer: DispatchedAnswer, outcome: str) -> None:
        """Count an ended request, and say where it went."""
        usage, attempts = answer.usage, answer.attempts
        self._tally.add(
            request.model,
            outcome,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            failovers=max(0, len(attempts) - request.choices),
        )
        route_log.info(
            "request %s key=%s model=%s %s at %s; attempts %s; tokens %d prompt, %d cached, %d completion",
            *(request.id, request.key_name, request.model, outcome, answer.route),
            attempts_text(f"{a.node}({a.state.value})" for a in attempts),
            *(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens),
        )

    async def count(
        self,
        request: GenerationRequest,
        *,
        want_text: bool = False,
        want_tokens: bool = False,
        must_fit: bool = False,
    ) -> Counted:
        """Count a prompt; see `Service.count`."""
        request = replace(request, model=self._node.resolve(request.model))
        question = Count(request.id, request.model, prompt_of(request), want_text, want_tokens, must_fit)
        routing = self._node.news.describe(request)
        answer = await self._ask(
            routing, request, lambda engine, _: engine.count(msgspec.structs.replace(question, model=engine.model))
        )
        assert isinstance(answer, Counted)
        return answer

    async def embed(
        self,
        model: str,
        inputs: tuple[str | tuple[int, ...], ...],
        *,
        request_id: str,
        key_name: str = "",
        pooling: str = "",
    ) -> Embedded:
        """Compute vectors or scores; see `Service.embed`."""
        self._refuse_when_draining()
        resolved = self._node.resolve(model)
        question = Embed(request_id, resolved, inputs, pooling)
        need = "rerank" if pooling == "rank" else "embeddings"
        routing = self._node.routing_request(request_id, resolved, frozenset({need}))

        def ask(engine: Source, heard: Heard) -> Awaitable[Embedded | Refused]:
            return engine.embed(msgspec.structs.replace(question, model=engine.model), heard)

        answer = await self._ask(routing, None, ask, key_name=key_name, upstream_s=limits.UPSTREAM_FIRST_S)
        assert isinstance(answer, Embedded)
        return answer

    async def _ask(
        self,
        routing: RoutingRequest,
        request: GenerationRequest | None,
        ask: Callable[[Source, Heard], Awaitable[Counted | Embedded | Refused]],
        *,
        key_name: str = "",
        upstream_s: float = SIDE_QUESTION_S,
    ) -> Counted | Embedded:
        """Put a question to the places that can answer it, best first, until one does.

        `upstream_s` is the longest wait at an upstream, which is heard of with its answer only.
        """
        decision = self._node.decide(routing)
        if decision.refusal is not None:
            raise decision.refusal.as_error()
        end_at = trio.current_time() + limits.VECTORS_S
        last = ApiError(ErrorKind.MODEL_UNAVAILABLE, "no node that has the model answered; try again", retry_after_s=2)
        for ranked in decision.attempts[: limits.ATTEMPTS_MAX]:
            engine: Source | None = (
                self._node.place_named(ranked.candidate, key_name)
                if request is None
                else self._node.place(ranked.candidate, request)
            )
            if engine is None:
                continue
            try:
                wait_s = upstream_s if ranked.candidate.placement is Placement.UPSTREAM else SIDE_QUESTION_S
                answer = await _patiently(ask, engine, wait_s, end_at)
            except (HopError, trio.TooSlowError):
                if trio.current_time() >= end_at:
                    sentence = f"no answer was made in {limits.VECTORS_S:.0f} seconds: send fewer inputs at once"
                    raise ApiError(ErrorKind.TIMED_OUT, sentence) from None
                continue
            if not isinstance(answer, Refused):
                return answer
            error = final_error(answer)
            if error is not None:
                raise error
            last = passing_error(answer)
        raise last

    def models(self) -> tuple[ModelCard, ...]:
        """Every model some member holds."""
        node = self._node
        cards = []
        models = node.view.known_models()
        ids = {known.id for known in models}
        for known in models:
            base = known.id.rpartition(":")[0]
            entry = node.catalog.entry(known.id)
            card = ModelCard(
                id=known.id,
                aliases=node.catalog.aliases(known.id),
                created=self._started_at,
                context_tokens=known.context_tokens,
                capabilities=known.tags,
                state=known.state,
                display_name=entry.title if entry is not None else known.id,
                lanes=known.lanes,
                parent=base if base in ids else "",
                template_ways=ways_numbered(known.template_ways),
            )
            resident = node.residents.find(known.id)
            cards.append(card if resident is None else _with_file(card, resident))
        return (*cards, *later_cards(node, tuple(cards), self._started_at))

    def cluster_state(self) -> dict[str, Any]:
        """This node's view of all members; of its own models also how far they are loaded."""
        state, now = self._node.view.state(clock_ns()), trio.current_time()
        for member in state["members"]:
            for model in member["models"] if member["local"] else ():
                resident = self._node.residents.find(model["id"])
                if resident is not None and resident.state is ModelState.LOADING:
                    model["progress"] = resident.progress(now)
        return state

    def unready(self) -> str:
        """Why this node takes no requests; empty when it does."""
        if self._node.draining:
            return "draining, this node is about to stop"
        models = self._node.residents.models
        loading = [m for m, r in models.items() if r.at_start and r.state is not ModelState.READY]
        return f"loading {', '.join(loading)}" if loading else ""

    def _refuse_when_draining(self) -> None:
        if self._node.draining:
            raise ApiError(
                ErrorKind.DRAINING, "this node is about to stop; send the request to another", retry_after_s=1
            )
