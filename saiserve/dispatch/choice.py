"""Runs one choice: carries out what its failover machine says. Decides nothing itself."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, suppress

import msgspec
import trio

from saiserve import limits
from saiserve.chat.answer import ChoiceText
from saiserve.chat.events import AnswerEvent, PromptProgress, Relayed
from saiserve.chat.prompt import prompt_of
from saiserve.chat.reasoning import ReasoningCount
from saiserve.chat.request import GenerationRequest
from saiserve.dispatch.attempt import NS
from saiserve.dispatch.clock import clock_ns
from saiserve.dispatch.failover import Done, Fail, Failover, Route, Start
from saiserve.dispatch.listening import Listening
from saiserve.dispatch.pace import Pace
from saiserve.dispatch.ports import Fit, FleetNews, Places
from saiserve.dispatch.waiting import WaitingRoom
from saiserve.engines.engine import HopError
from saiserve.engines.messages import (
    Accepted,
    Count,
    Counted,
    Finished,
    FinishReason,
    Generate,
    Progress,
    Prompt,
    Tokens,
)
from saiserve.engines.spoken import Source, SourceReply, Spoken
from saiserve.engines.token_runs import singly
from saiserve.routing.candidate import Placement
from saiserve.routing.decision import Decision

_SETTLE_S = 0.02
"""News comes in bursts: several changes make one new decision."""

log = logging.getLogger(__name__)

Emit = Callable[[AnswerEvent], Awaitable[None]]


class ChoiceRunner:
    """One choice and its surroundings. `run` ends after the choice's last event, or raises what the client is told."""

    def __init__(
        self,
        request: GenerationRequest,
        failover: Failover,
        text: ChoiceText,
        *,
        places: Places,
        news: FleetNews,
        reroute: Callable[[], Awaitable[Decision]],
        waiting: WaitingRoom,
        emit: Emit,
        on_accepted: Callable[[bool], Awaitable[None]],
        fit: Fit | None = None,
    ) -> None:
        self.failover = failover
        self.pace = Pace()
        self._request = request
        self._text = text
        self._places = places
        self._news = news
        self._reroute = reroute
        self._waiting = waiting
        self._emit = emit
        self._on_accepted = on_accepted
        self._fit = fit
        self._parse: Callable[[AnswerEvent], list[AnswerEvent]] | None = None
        self._by = request
        """The request as it was fitted to the model that serves it."""
        self._reasoning = _count_of(request)
        self._turn: trio.Event | None = None

    async def run(self, decision: Decision) -> None:
        """Bring the choice to its end.

        Raises:
            ApiError: it cannot be completed; the events so far stand.
        """
        with ExitStack() as line:
            if decision.attempts and not self._waiting.is_empty(self._line_name):
                await self._queue_up(line)
                decision = await self._reroute()
            self._offer(decision)
            while True:
                match self.failover.decide(clock_ns()):
                    case Start() as start:
                        await self._attempt(start, line)
                        self.failover.ended(clock_ns())
                    case Route() as wait:
                        await self._wait(wait, line)
                        self._offer(await self._reroute())
                    case Done() if self.failover.is_spoken:
                        return
                    case Done(reason, stop_string):
                        for event in self._text.finish(reason, stop_string):
                            await self._say(event)
                        return
                    case Fail(error):
                        raise error

    def _offer(self, decision: Decision) -> None:
        if decision.refusal is not None:
            self.failover.fail(decision.refusal.as_error())
        else:
            self.failover.offer(tuple(ranked.candidate for ranked in decision.attempts))

    async def _wait(self, wait: Route, line: ExitStack) -> None:
        if wait.is_busy and self._turn is None:
            self._turn = line.enter_context(self._place_in_line())
        if self._turn is not None and not self._turn.is_set():
            with trio.move_on_at(wait.give_up_at / NS):
                await self._turn.wait()
            return
        with trio.move_on_at(wait.until / NS):
            await self._news.changed()
            await trio.sleep(_SETTLE_S)

    async def _queue_up(self, line: ExitStack) -> None:
        """Go behind those who were told that every place is busy."""
        self._turn = line.enter_context(self._place_in_line())
        with trio.move_on_at(self.failover.queue_until / NS):
            await self._turn.wait()

    def _place_in_line(self) -> AbstractContextManager[trio.Event]:
        return self._waiting.place(self._line_name)

    @property
    def _line_name(self) -> str:
        """Suspects wait for places of their own, so they stand in a line of their own."""
        return f"{self._request.model}{' suspect' if self.failover.is_suspect else ''}"

    async def _attempt(self, start: Start, line: ExitStack) -> None:
        engine = self._places(start.candidate, self._request)
        if engine is None:
            start.attempt.hop_failed(sent=False, detail="the place is gone")
            return
        self._news.started(start.candidate, self._request)
        try:
            async with trio.open_nursery() as nursery:
                listening = Listening(start.attempt)
                nursery.start_soon(listening.until_too_long, nursery.cancel_scope)
                if start.candidate.placement is Placement.PEER:
                    nursery.start_soon(self._watch_member, start, listening)
                await self._converse(engine, start, listening, line)
                nursery.cancel_scope.cancel()
            deadline = start.attempt.next_deadline()
            if deadline is not None:
                start.attempt.advance(deadline)
        finally:
            start.attempt.cancel()
            self._news.ended(start.candidate, is_broken=start.attempt.is_broken)
            last = start.attempt.refused or start.attempt.finished
            if last is not None:
                self._news.reported(start.candidate, last.load)

    async def _watch_member(self, start: Start, listening: Listening) -> None:
        """Tell the attempt the cluster's verdicts; a shorter wait takes effect at once."""
        while True:
            start.attempt.member_is_dead(self._news.is_dead(start.candidate))
            listening.look_again()
            await self._news.changed()

    async def _converse(self, engine: Source, start: Start, listening: Listening, line: ExitStack) -> None:
        attempt = start.attempt
        try:
            async with engine.generate(self._fitted(start)) as messages:
                attempt.sent(clock_ns())
                listening.look_again()
                async for message in messages:
                    listening.is_kept = True
                    if attempt.receive(clock_ns(), message):
                        await self._take(engine, start, message, line)
                    if attempt.is_over:
                        return
                    attempt.reader_caught_up(clock_ns())
                    listening.is_kept = False
            attempt.hop_failed(sent=True, detail="the stream ended without a last message")
        except HopError as error:
            attempt.hop_failed(sent=error.sent, detail=str(error))

    def _compare(self, start: Start, message: Finished) -> None:
        """The client is told what came through here; an engine that counts otherwise has a fault of its own."""
        if not self.failover.is_spoken and message.completion_tokens != len(self.failover.tokens):
            log.warning(
                "attempt %s: %s counts %d tokens, %d came",
                start.attempt.id,
                start.candidate.id,
                message.completion_tokens,
                len(self.failover.tokens),
            )

    async def _take(self, engine: Source, start: Start, message: SourceReply, line: ExitStack) -> None:
        match message:
            case Accepted(load=load):
                self._news.reported(start.candidate, load)
                self.failover.started()
                line.close()
                self._turn = None
                self._news.cached(start.candidate, self._request, message.prompt_tokens, message.cached_tokens)
                if start.candidate.placement is not Placement.UPSTREAM:
                    await self._on_accepted(False)
                await self._tell(self.pace.accepted(clock_ns(), message.prompt_tokens, message.cached_tokens))
            case Spoken():
                await self._hear(message)
            case Progress(prefilled=prefilled):
                await self._tell(self.pace.progressed(prefilled))
            case Finished():
                self._compare(start, message)
                self.pace.finished(message)
                self._news.cached(start.candidate, self._request, self.failover.prompt_tokens, message.cached_tokens)
            case Tokens():
                await self._tell(self.pace.tokens(clock_ns()))
                # A late reader gets several tokens at once: those behind the end of the reasoning are no part of it.
                for part in singly(message) if self._reasoning is not None else [message]:
                    if not start.attempt.is_over:
                        await self._say_tokens(engine, start, part)
            case _:
                pass

    async def _say_tokens(self, engine: Source, start: Start, message: Tokens) -> None:
        self.failover.take(message)
        is_spent = False
        for event in self._text.tokens(message):
            await self._say(event)
            is_spent = is_spent or (self._reasoning is not None and self._reasoning.is_spent(event))
        if self._text.stopped:
            self.failover.finish(Done(FinishReason.STOP_STRING))
            start.attempt.cancel()
        elif is_spent and (end := await self._end_of_reasoning(engine, start)) is not None:
            start.attempt.cancel()
            self.failover.insert(end)
            for event in self._text.tokens(end):
                await self._say(event)

    async def _end_of_reasoning(self, engine: Source, start: Start) -> Tokens | None:
        """What closes the reasoning, in the model's tokens; None when they cannot be had, and it goes on as it is."""
        assert self._reasoning is not None
        closing, self._reasoning = self._reasoning.closing, None
        options = {"add_special": False, "parse_special": True}
        question = Count(
            start.attempt.id, engine.model, Prompt(text=closing, template_options=options), want_tokens=True
        )
        with trio.move_on_after(limits.ACCEPTED_S), suppress(HopError):
            counted = await engine.count(question)
            if isinstance(counted, Counted) and counted.ids:
                return Tokens(start.attempt.id, counted.ids, closing.encode())
        log.warning("attempt %s: %s did not say how reasoning ends", start.attempt.id, start.candidate.id)
        return None

    async def _hear(self, message: Spoken) -> None:
        """An upstream spoke: its bytes where it speaks the client's dialect, else the events."""
        if not self.failover.is_spoken:
            await self._on_accepted(message.relayed)
        self.failover.hear(message)
        if message.relayed:
            await self._emit(Relayed(message.raw, message.is_end))
            return
        for event in message.events:
            await self._emit(event)

    async def _say(self, event: AnswerEvent) -> None:
        """Emit an event of a local model, parsed here when its request was fitted here."""
        for parsed in (event,) if self._parse is None else self._parse(event):
            await self._emit(parsed)

    def _fitted(self, start: Start) -> Generate:
        """What the engine is asked, in the ways of the model that was chosen; once it has begun they stay."""
        if self._fit is None or start.candidate.placement is Placement.UPSTREAM:
            return start.generate
        if not self.failover.tokens:
            fitted = self._fit(self._request, start.candidate.model)
            self._parse = fitted.parse if fitted is not None else None
            self._by = fitted.request if fitted is not None else self._request
            self._text = ChoiceText(self._text.choice, self._by.stop, self._by.reasoning_marks)
            self._reasoning = _count_of(self._by)
        by = self._by
        if by is self._request:
            return start.generate
        stops = engine_stops(by)
        return msgspec.structs.replace(start.generate, prompt=prompt_of(by), stop=stops, constraint=by.constraint)

    async def _tell(self, progress: PromptProgress | None) -> None:
        if progress is not None and self._request.progress:
            await self._emit(progress)


def _count_of(request: GenerationRequest) -> ReasoningCount | None:
    if request.reasoning_tokens is None or request.reasoning_marks is None:
        return None
    return ReasoningCount(request.reasoning_tokens, request.reasoning_marks)


def engine_stops(request: GenerationRequest) -> tuple[str, ...]:
    """The stop strings an engine may end on by itself: none where it could find one in the reasoning.

    An engine sees tokens and knows no reasoning, so that the entry node alone watches such an answer.
    """
    return () if request.reasoning_marks is not None else request.stop
