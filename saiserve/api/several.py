"""Several prompts answered as one request: their choices numbered through, their usages added up.

Theory: one task per prompt feeds one channel. The first acceptance opens the answer; a fault before it is the whole
request's refusal, a fault after it ends the whole stream, as a fault of one choice does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from saiserve import limits
from saiserve.api.service import Answer, Service
from saiserve.chat.events import AnswerEvent, AnswerFailed, ChoiceFinished, Started, TextDelta, Usage
from saiserve.chat.request import GenerationRequest
from saiserve.errors import ApiError


class Several:
    """Answers `requests` together. Each choice's end carries the usage of its own prompt.

    `openings` are texts that each choice of a prompt begins with (`echo`).
    """

    def __init__(
        self, service: Service, requests: Sequence[GenerationRequest], openings: Sequence[str] | None = None
    ) -> None:
        self._service = service
        self._requests = requests
        self._openings = openings or [""] * len(requests)

    @asynccontextmanager
    async def answer(self, _request: GenerationRequest) -> AsyncIterator[Answer]:
        """Start all of them; see `saiserve.api.service.Service.answer`."""
        run = _Run(self._service, self._requests, self._openings)
        outcome: BaseException | None = None
        async with run.events, trio.open_nursery() as nursery:
            nursery.start_soon(run.main)
            try:
                route = await run.until_accepted()
                yield Answer(run.events, route)
            except Exception as error:  # noqa: BLE001  # raised below, outside the nursery, so that it is not wrapped
                outcome = error
            nursery.cancel_scope.cancel()
        if outcome is not None:
            raise outcome


class _Run:
    def __init__(self, service: Service, requests: Sequence[GenerationRequest], openings: Sequence[str]) -> None:
        self._service = service
        self._requests = requests
        self._openings = openings
        self._send, self.events = trio.open_memory_channel[AnswerEvent](limits.STREAM_BUFFER_MESSAGES)
        self._settled = trio.Event()
        self._started = False
        self._route = ""
        self._error: ApiError | None = None
        self._usage = Usage(0, 0, 0)

    async def until_accepted(self) -> str:
        """Wait for the first acceptance and return its route.

        Raises:
            ApiError: there was none.
        """
        await self._settled.wait()
        if not self._started and self._error is not None:
            raise self._error
        return self._route

    async def main(self) -> None:
        """All prompts to their end, or to the first that fails."""
        async with self._send:
            async with trio.open_nursery() as nursery:
                for place in range(len(self._requests)):
                    nursery.start_soon(self._prompt, place, nursery.cancel_scope)
            last = self._usage if self._error is None else AnswerFailed(self._error)
            if self._started:
                await self._send.send(last)
            self._settled.set()

    async def _prompt(self, place: int, scope: trio.CancelScope) -> None:
        try:
            async with self._service.answer(self._requests[place]) as answer:
                self._route = self._route or answer.route
                await self._pass_on(place, answer)
        except ApiError as error:
            self._error = self._error or error
            scope.cancel()

    async def _pass_on(self, place: int, answer: Answer) -> None:
        first = place * self._requests[place].choices
        ended: list[ChoiceFinished] = []
        try:
            async for event in answer.events:
                match event:
                    case Started():
                        await self._open(place, event)
                    case ChoiceFinished():
                        ended.append(replace(event, choice=first + event.choice))
                    case Usage():
                        self._usage = _sum(self._usage, event)
                        for finish in ended:
                            await self._send.send(replace(finish, usage=event))
                    case AnswerFailed():
                        raise event.error
                    case TextDelta():
                        await self._send.send(replace(event, choice=first + event.choice))
                    case _:
                        await self._send.send(event)
        finally:
            if isinstance(answer.events, AsyncGenerator):
                await answer.events.aclose()

    async def _open(self, place: int, event: Started) -> None:
        if not self._started:
            self._started = True
            await self._send.send(event)
            self._settled.set()
        if self._openings[place]:
            for choice in range(self._requests[place].choices):
                number = place * self._requests[place].choices + choice
                await self._send.send(TextDelta(number, self._openings[place]))


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(
        one.prompt_tokens + other.prompt_tokens,
        one.cached_tokens + other.cached_tokens,
        one.completion_tokens + other.completion_tokens,
        one.reasoning_tokens + other.reasoning_tokens,
        max(one.prompt_s, other.prompt_s),
        max(one.decode_s, other.decode_s),
    )
