"""Deciding where an answer comes from when a strategy needs a model's word first.

A side question goes to a judge model and its answer back into the chain. A draft is the client's own request, answered by
the places the strategy chose and held back: kept, it becomes the answer and goes on where it runs; dropped, the client
never saw it. Replies are remembered, so that asking the chain again later gives the same decision from newer news.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec
import trio

from saiserve import limits
from saiserve.chat.events import AnswerEvent, AnswerFailed, TextDelta, ToolCallStarted, Usage
from saiserve.chat.request import Dialect, GenerationRequest, Message, Role, TextPart
from saiserve.dispatch.failover import Failover
from saiserve.dispatch.ports import Steps
from saiserve.engines.messages import Constraint, Sampling
from saiserve.errors import ApiError
from saiserve.routing.ask import Ask, Question, Reply
from saiserve.routing.decision import Decision

log = logging.getLogger(__name__)


class Run(Protocol):
    """The choices of a request at work: see `dispatcher._Run`."""

    events: trio.MemoryReceiveChannel[AnswerEvent]
    machines: tuple[Failover, ...]
    scope: trio.CancelScope

    async def main(self) -> None:
        """All choices to their end."""
        ...


StartRun = Callable[[GenerationRequest, Decision, Callable[[], Awaitable[Decision]]], Run]
AskJudge = Callable[[GenerationRequest], Awaitable[str]]


@dataclass(slots=True)
class Draft:
    """A held answer: its events so far, and the run that makes more."""

    run: Run
    show_logprobs: bool
    held: list[AnswerEvent] = field(default_factory=list)
    is_over: bool = False
    failed: bool = False

    async def until(self, tokens: int) -> None:
        """Hold events back until there are so many tokens, or all."""
        while not self.is_over and self.run.machines[0].completion_tokens < tokens:
            try:
                event = await self.run.events.receive()
            except trio.EndOfChannel:
                self.is_over = True
                self.failed = self.failed or not any(isinstance(e, Usage) for e in self.held)
                return
            self.held.append(event)
            self.failed = self.failed or isinstance(event, AnswerFailed)
            self.is_over = isinstance(event, (Usage, AnswerFailed))

    def reply(self) -> Reply:
        """What the strategy is shown of choice 0."""
        deltas = [event for event in self.held if isinstance(event, TextDelta) and event.choice == 0]
        logprobs = [entry.logprob for delta in deltas for entry in delta.logprobs or ()]
        return Reply(
            text="".join(delta.text for delta in deltas),
            tokens=self.run.machines[0].completion_tokens,
            finished=self.is_over,
            tool_calls=sum(isinstance(event, ToolCallStarted) and event.choice == 0 for event in self.held),
            mean_logprob=sum(logprobs) / len(logprobs) if logprobs else None,
        )

    async def events(self) -> AsyncIterator[AnswerEvent]:
        """The answer from its beginning."""
        for event in self.held:
            if (shown := self._shown(event)) is not None:
                yield shown
        self.held.clear()
        async for event in self.run.events:
            if (shown := self._shown(event)) is not None:
                yield shown

    def _shown(self, event: AnswerEvent) -> AnswerEvent | None:
        """Without the log-probabilities that only the verdict needed."""
        if self.show_logprobs or not isinstance(event, TextDelta):
            return event
        return replace(event, logprobs=None) if event.text else None


class Deliberation:
    """One request's way to a decision.

    Args:
        start_run: makes the run of a draft; it is started in `nursery`.
        ask_judge: puts a side question and returns the answer's text.
    """

    def __init__(
        self, request: GenerationRequest, steps: Steps, start_run: StartRun, ask_judge: AskJudge, nursery: trio.Nursery
    ) -> None:
        self.draft: Draft | None = None
        """The kept draft, once `settle` is done and one was kept."""
        self._request = request
        self._steps = steps
        self._start_run = start_run
        self._ask_judge = ask_judge
        self._nursery = nursery
        self._replies: list[Reply | None] = []
        self._placed: Decision | None = None
        """Where the draft may run, while it is judged."""

    async def settle(self) -> Decision:
        """Ask what must be asked, and decide."""
        steps = self._steps(self._request)
        try:
            ask = next(steps)
            while True:
                reply = await self._reply(ask)
                self._replies.append(reply)
                ask = steps.send(reply)
        except StopIteration as stop:
            decision: Decision = stop.value
        self._placed = None
        if not decision.draft_kept:
            self._drop()
        return decision

    async def again(self) -> Decision:
        """Decide anew from newer news with the replies of the first time; while a draft is judged, its own places."""
        if self._placed is not None:
            return self._placed
        return replay(self._steps(self._request), self._replies)

    async def _reply(self, ask: Ask) -> Reply | None:
        if ask.question is not None:
            return await self._side_answer(ask.question)
        return await self._draft(ask)

    async def _draft(self, ask: Ask) -> Reply | None:
        if self.draft is None:
            self._placed = Decision(ask.attempts, None)
            wanted = self._request.sampling.logprobs
            sampling = self._request.sampling if wanted is not None else _with_logprobs(self._request.sampling)
            request = replace(self._request, sampling=sampling, is_draft=True)
            self.draft = Draft(self._start_run(request, self._placed, self.again), show_logprobs=wanted is not None)
            self._nursery.start_soon(self.draft.run.main)
        with trio.move_on_after(limits.DRAFT_S) as wait:
            await self.draft.until(ask.draft_tokens)
        if wait.cancelled_caught or self.draft.failed:
            self._drop()
            return None
        return self.draft.reply()

    def _drop(self) -> None:
        if self.draft is not None:
            self.draft.run.scope.cancel()
            self.draft.run.events.close()
            self.draft = None

    async def _side_answer(self, question: Question) -> Reply | None:
        with trio.move_on_after(question.deadline_s):
            try:
                return Reply(await self._ask_judge(judge_request(self._request, question)), finished=True)
            except ApiError as error:
                log.info("request %s: the judge %s did not answer: %s", self._request.id, question.model, error)
        return None


def replay(steps: Generator[Ask, Reply | None, Decision], replies: list[Reply | None]) -> Decision:
    """The decision of a chain that is given replies known before; questions beyond them get none."""
    left = iter(replies)
    try:
        next(steps)
        while True:
            steps.send(next(left, None))
    except StopIteration as stop:
        decision: Decision = stop.value
        return decision


def judge_request(request: GenerationRequest, question: Question) -> GenerationRequest:
    """A side question as a request of its own: greedy, held to the schema, with the end of the conversation."""
    body = msgspec.json.encode(question.schema).decode()
    return GenerationRequest(
        id=f"{request.id}-judge",
        dialect=Dialect.CHAT,
        model=question.model,
        sampling=Sampling(seed=0, temperature=0.0),
        messages=(
            Message(Role.SYSTEM, (TextPart(f"{question.instruction} Answer with JSON of this schema: {body}"),)),
            Message(Role.USER, (TextPart(conversation_tail(request, question.tail_characters)),)),
        ),
        max_tokens=question.max_tokens,
        constraint=Constraint("json_schema", body),
        key_name=request.key_name,
        template_options={"enable_thinking": False},
        created=request.created,
    )


def conversation_tail(request: GenerationRequest, characters: int) -> str:
    """The end of a conversation as plain text, each turn after its role."""
    if request.messages is None:
        return (request.prompt_text or "")[-characters:]
    lines = [f"{message.role}: {message.text}" for message in request.messages if message.text]
    return "\n\n".join(lines)[-characters:]


def _with_logprobs(sampling: Sampling) -> Sampling:
    return msgspec.structs.replace(sampling, logprobs=0)
