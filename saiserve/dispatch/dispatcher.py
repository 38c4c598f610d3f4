"""Answers requests: the async shell around routing, the failover machines and engines."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import trio

from saiserve import limits
from saiserve.channels import put
from saiserve.chat.answer import ChoiceText
from saiserve.chat.events import AnswerEvent, AnswerFailed, Started, TextDelta, Usage
from saiserve.chat.prompt import prompt_of
from saiserve.chat.request import GenerationRequest
from saiserve.dispatch.attempt import Deadlines
from saiserve.dispatch.choice import ChoiceRunner, engine_stops
from saiserve.dispatch.clock import clock_ns
from saiserve.dispatch.deliberation import Deliberation
from saiserve.dispatch.failover import AttemptRecord, Failover
from saiserve.dispatch.ports import Fit, FleetNews, Places, Route, Steps
from saiserve.dispatch.suspects import Suspects, fingerprint
from saiserve.dispatch.waiting import WaitingRoom
from saiserve.engines.messages import Generate
from saiserve.errors import ApiError, ErrorKind
from saiserve.routing.candidate import Candidate
from saiserve.routing.decision import Decision

log = logging.getLogger(__name__)

_SEED_BITS = 63


@dataclass(slots=True)
class Answer:
    """One request being answered.

    `events` may be read once. `decision` is the first routing decision; `attempts` and `usage` grow as it goes and are
    final after the last event, or once the client has gone (what was generated until then).
    """

    events: AsyncIterator[AnswerEvent]
    decision: Decision
    _machines: tuple[Failover, ...] = field(default=())

    @property
    def served_by(self) -> Candidate | None:
        """The place that accepted choice 0 last."""
        return self._machines[0].served_by

    @property
    def attempts(self) -> tuple[AttemptRecord, ...]:
        """Every attempt that ended, choice by choice."""
        return tuple(record for machine in self._machines for record in machine.trace)

    @property
    def usage(self) -> Usage:
        """Tokens so far, as the entry node counts them."""
        return _usage(self._machines)

    @property
    def route(self) -> str:
        """Where it runs and why, in a few printable ASCII characters."""
        served = self.served_by
        if served is None:
            return "none"
        ranked = next((r for r in self.decision.attempts if r.candidate.id == served.id), None)
        words = f"{served.node}; {served.model}; {'; '.join(ranked.reasons) if ranked else 'failover'}"
        return "".join(c if " " <= c <= "~" else "?" for c in words)[:_ROUTE_CHARACTERS]


_ROUTE_CHARACTERS = 300


class Dispatcher:
    """Starts, carries over and stops answers. One per node.

    Args:
        route: decides where a request may run; called at the start and again whenever another place is needed.
        places: the engine behind a candidate.
        news: the fleet's view.
        steps: the same as `route` where strategies may ask a model first; without it none does.
        isolates_keys: prefixes are shared among requests of one client key only.
        suspects: shared with the node's `GuardedEngine`s.
    """

    def __init__(
        self,
        *,
        route: Route,
        places: Places,
        news: FleetNews,
        steps: Steps | None = None,
        isolates_keys: bool = False,
        suspects: Suspects | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self.fit: Fit | None = None
        """How a request for a route is fitted to the model that serves it; set by whoever knows the models' ways."""
        self.suspects = suspects or Suspects()
        self.waiting = WaitingRoom()
        self._route = route
        self._places = places
        self._news = news
        self._steps = steps
        self._isolates_keys = isolates_keys
        self._deadlines = deadlines

    @asynccontextmanager
    async def answer(self, request: GenerationRequest) -> AsyncIterator[Answer]:
        """Start an answer; entering waits until a place has accepted it.

        Leaving the context, at any time, stops the work wherever it stands, on this node or another.

        Raises:
            ApiError: on entry, when nothing took it; nothing was sent to the client.
        """
        self._check_quarantine(request)
        outcome: BaseException | None = None
        async with trio.open_nursery() as nursery:
            run: _Run | None = None
            try:
                run, decision, events = await self._settled(request, nursery)
                await run.until_accepted()
                yield Answer(events, decision, run.machines)
            except Exception as error:  # noqa: BLE001 -- raised below, outside the nursery, so that it is not wrapped
                outcome = error
            finally:
                nursery.cancel_scope.cancel()
                if run is not None:
                    run.events.close()
        if outcome is not None:
            raise outcome

    async def _settled(
        self, request: GenerationRequest, nursery: trio.Nursery
    ) -> tuple[_Run, Decision, AsyncIterator[AnswerEvent]]:
        """The run that answers a request, started, and its events from the first on.

        Raises:
            ApiError: routing refuses it.
        """
        reroute: Callable[[], Awaitable[Decision]] = partial(self._route, request)
        if self._steps is None:
            decision = await reroute()
        else:
            start = partial(_Run, self)
            deliberation = Deliberation(request, self._steps, start, self._ask_judge, nursery)
            decision, reroute = await deliberation.settle(), deliberation.again
            draft = deliberation.draft
            if draft is not None:
                assert isinstance(draft.run, _Run)
                return draft.run, decision, draft.events()
        if decision.refusal is not None:
            raise decision.refusal.as_error()
        run = _Run(self, request, decision, reroute)
        nursery.start_soon(run.main)
        return run, decision, run.events

    async def _ask_judge(self, question: GenerationRequest) -> str:
        """The text of a side answer; whoever answers it is not judged again.

        Raises:
            ApiError: there is none.
        """
        reroute = partial(self._route, question)
        decision = await reroute()
        if decision.refusal is not None:
            raise decision.refusal.as_error()
        run = _Run(self, question, decision, reroute)
        text = ""
        async with run.events, trio.open_nursery() as nursery:
            nursery.start_soon(run.main)
            async for event in run.events:
                text += event.text if isinstance(event, TextDelta) else ""
        if run.error is not None:
            raise run.error
        return text

    def _check_quarantine(self, request: GenerationRequest) -> None:
        quarantine = self.suspects.quarantine
        if len(quarantine) and quarantine.holds(fingerprint(template_of(request, 0)), clock_ns()):
            raise ApiError(
                ErrorKind.ENGINE_FAILED,
                "a request like this one brought down two engines; it is not tried again for a while",
            )

    def _runner(
        self,
        request: GenerationRequest,
        choice: int,
        emit: Callable[[AnswerEvent], Awaitable[None]],
        on_accepted: Callable[[bool], Awaitable[None]],
        reroute: Callable[[], Awaitable[Decision]],
    ) -> ChoiceRunner:
        template = template_of(request, choice)
        if self._isolates_keys:
            template = msgspec.structs.replace(template, isolation=request.key_name)
        if request.is_fresh:
            # Prefixes are shared only within an isolation; one of its own shares nothing.
            template = msgspec.structs.replace(template, isolation=f"{template.isolation}\0{template.id}")
        return ChoiceRunner(
            request,
            Failover(template, now=clock_ns(), deadlines=self._deadlines),
            ChoiceText(choice, request.stop, request.reasoning_marks),
            places=self._places,
            news=self._news,
            reroute=reroute,
            waiting=self.waiting,
            emit=emit,
            on_accepted=on_accepted,
            fit=self.fit,
        )


class _Run:
    """The choices of one request at work, and the channel their events go through."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        request: GenerationRequest,
        decision: Decision,
        reroute: Callable[[], Awaitable[Decision]],
    ) -> None:
        self.scope = trio.CancelScope()
        """Ends it."""
        self.error: ApiError | None = None
        self._dispatcher = dispatcher
        self._request = request
        self._decision = decision
        self._send, self.events = trio.open_memory_channel[AnswerEvent](limits.STREAM_BUFFER_MESSAGES)
        self._settled = trio.Event()
        self._accepted = False
        self._runners = tuple(
            dispatcher._runner(request, choice, partial(put, self._send), self._on_accepted, reroute)  # noqa: SLF001
            for choice in range(request.choices)
        )
        self.machines = tuple(runner.failover for runner in self._runners)

    async def until_accepted(self) -> None:
        """Wait for the first acceptance.

        Raises:
            ApiError: there was none.
        """
        await self._settled.wait()
        if not self._accepted:
            assert self.error is not None
            raise self.error

    async def main(self) -> None:
        """All choices to their end, or to the first that fails."""
        with self.scope:
            await self._main()

    async def _main(self) -> None:
        async with self._send:
            async with trio.open_nursery() as nursery:
                for runner in self._runners:
                    nursery.start_soon(self._choice, runner, nursery.cancel_scope)
            if self.error is None:
                await self._send.send(self._usage())
            elif self._accepted:
                await self._send.send(AnswerFailed(self.error))
            self._settled.set()

    def _usage(self) -> Usage:
        paces = [runner.pace for runner in self._runners]
        return replace(
            _usage(self.machines),
            prompt_s=max(pace.prompt_s for pace in paces),
            decode_s=max(pace.decode_s for pace in paces),
        )

    async def _choice(self, runner: ChoiceRunner, scope: trio.CancelScope) -> None:
        try:
            await runner.run(self._decision)
        except ApiError as error:
            self._fail(error, scope)
        except Exception:
            log.exception("request %s: a choice broke", self._request.id)
            self._fail(ApiError(ErrorKind.INTERNAL, "an internal error ended this answer"), scope)
        finally:
            if runner.failover.is_quarantined:
                mark = fingerprint(template_of(self._request, 0))
                self._dispatcher.suspects.quarantine.add(mark, clock_ns())

    def _fail(self, error: ApiError, scope: trio.CancelScope) -> None:
        self.error = self.error or error
        scope.cancel()

    async def _on_accepted(self, relayed: bool) -> None:
        if self._accepted:
            return
        self._accepted = True
        machine = next(machine for machine in self.machines if machine.accepted)
        await self._send.send(Started(machine.prompt_tokens, machine.cached_tokens, relayed))
        self._settled.set()


def template_of(request: GenerationRequest, choice: int) -> Generate:
    """What an engine is asked for one choice, before it is known which; each choice draws with a seed of its own."""
    seed = (request.sampling.seed + choice) % (1 << _SEED_BITS)
    return Generate(
        id=f"{request.id}.{choice}",
        model=request.model,
        prompt=prompt_of(request),
        sampling=msgspec.structs.replace(request.sampling, seed=seed),
        max_tokens=request.max_tokens,
        stop=engine_stops(request),
        constraint=request.constraint,
    )


def _usage(machines: tuple[Failover, ...]) -> Usage:
    first = next((machine for machine in machines if machine.accepted), machines[0])
    completion = sum(machine.completion_tokens for machine in machines)
    return Usage(first.prompt_tokens, min(first.cached_tokens, first.prompt_tokens), completion)
