"""`max_tokens: 0` on the plain completions route: prompts are counted, echoed where that is wanted, and nothing is made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from saiserve.api.service import Answer, Service
from saiserve.chat.events import AnswerEvent, ChoiceFinished, Started, StopKind, TextDelta, Usage
from saiserve.chat.request import GenerationRequest


class Unwritten:
    """Answers `requests` together with no token of the model's; `openings` are their prompts where these are echoed."""

    def __init__(
        self, service: Service, requests: Sequence[GenerationRequest], openings: Sequence[str] | None = None
    ) -> None:
        self._service = service
        self._requests = requests
        self._openings = openings or [""] * len(requests)

    @asynccontextmanager
    async def answer(self, _request: GenerationRequest) -> AsyncIterator[Answer]:
        """Count all prompts, then answer; see `saiserve.api.service.Service.answer`."""
        tokens = [(await self._service.count(request)).tokens for request in self._requests]
        yield Answer(self._events(sum(tokens)))

    async def _events(self, tokens: int) -> AsyncIterator[AnswerEvent]:
        yield Started(prompt_tokens=tokens, cached_tokens=0)
        choice = 0
        for request, opening in zip(self._requests, self._openings, strict=True):
            for _ in range(request.choices):
                if opening:
                    yield TextDelta(choice, opening)
                yield ChoiceFinished(choice, StopKind.LENGTH)
                choice += 1
        yield Usage(prompt_tokens=tokens, cached_tokens=0, completion_tokens=0)
