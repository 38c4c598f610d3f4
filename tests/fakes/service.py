"""A node that says what it is told to: scripted answers, and a record of what was asked and how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from saiserve.api.service import Answer, ModelCard
from saiserve.chat.events import AnswerEvent, ChoiceFinished, Started, StopKind, TextDelta, Usage
from saiserve.chat.request import GenerationRequest
from saiserve.engines.messages import Counted, Embedded
from saiserve.errors import ApiError, ErrorKind


@dataclass(frozen=True)
class Pause:
    """A silence in a script, in seconds."""

    seconds: float


Step = AnswerEvent | Pause | Exception
Script = Callable[[GenerationRequest], Sequence[Step]]

CARD = ModelCard(
    id="smol",
    aliases=("smollm2-135m",),
    created=1_700_000_000,
    context_tokens=8192,
    capabilities=frozenset({"chat", "tools"}),
    display_name="SmolLM2",
)
SLASHED_CARD = ModelCard(id="org/name", created=1_700_000_001, context_tokens=2048, capabilities=frozenset({"chat"}))


def saying(text: str, *, kind: StopKind = StopKind.END, stop_string: str | None = None) -> Script:
    """Answer every choice with `text`, cut into pieces of three characters."""

    def script(request: GenerationRequest) -> Sequence[Step]:
        steps: list[Step] = [Started(prompt_tokens=7, cached_tokens=3)]
        for choice in range(request.choices):
            steps += [TextDelta(choice, text[at : at + 3]) for at in range(0, len(text), 3)]
            steps.append(ChoiceFinished(choice, kind, stop_string))
        steps.append(Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=5 * request.choices))
        return steps

    return script


@dataclass
class ScriptedService:
    """Implements `saiserve.api.service.Service`."""

    script: Script = field(default_factory=lambda: saying("Hello there."))
    cards: tuple[ModelCard, ...] = (CARD, SLASHED_CARD)
    entry_s: float = 0.0
    """How long a request waits before it is accepted."""
    unready_reason: str = ""
    requests: list[GenerationRequest] = field(default_factory=list)
    embedded: list[tuple[str | tuple[int, ...], ...]] = field(default_factory=list)
    """What was to become vectors, per request."""
    ended: list[str] = field(default_factory=list)
    """Per request, in the order they ended: `done` or `cancelled`."""
    closed: trio.Event = field(default_factory=trio.Event)

    @asynccontextmanager
    async def answer(self, request: GenerationRequest) -> AsyncIterator[Answer]:
        """Play the script."""
        self.requests.append(request)
        if request.model not in {name for card in self.cards for name in (card.id, *card.aliases)}:
            raise ApiError(
                ErrorKind.MODEL_NOT_FOUND, f"The model {request.model!r} does not exist here.", param="model"
            )
        outcome = "cancelled"
        try:
            await trio.sleep(self.entry_s)
            yield Answer(self._play(self.script(request)), route="local smol: the only place")
            outcome = "done"
        finally:
            self.ended.append(outcome)
            self.closed.set()

    async def _play(self, steps: Sequence[Step]) -> AsyncIterator[AnswerEvent]:
        for step in steps:
            if isinstance(step, Pause):
                await trio.sleep(step.seconds)
            elif isinstance(step, Exception):
                raise step
            else:
                await trio.lowlevel.checkpoint()
                yield step

    async def count(
        self,
        request: GenerationRequest,
        *,
        want_text: bool = False,
        want_tokens: bool = False,
        must_fit: bool = False,
    ) -> Counted:
        """Count one token per character of all text; tokens are code points."""
        self.requests.append(request)
        if request.prompt_tokens is not None:
            if max(request.prompt_tokens) > 0x10FFFF:
                raise ApiError(ErrorKind.INVALID_REQUEST, "a token is not in the vocabulary")
            text = "".join(map(chr, request.prompt_tokens))
        elif request.prompt_text is not None:
            text = request.prompt_text
        else:
            text = "".join(f"<{message.role}>{message.text}" for message in request.messages or ())
            text += "".join(tool.name for tool in request.tools)
        return Counted(
            id=request.id,
            tokens=len(text),
            text=text if want_text else None,
            ids=tuple(map(ord, text)) if want_tokens else None,
            pieces=tuple(sign.encode() for sign in text) if want_tokens else None,
        )

    async def embed(
        self,
        model: str,
        inputs: tuple[str | tuple[int, ...], ...],
        *,
        request_id: str,
        key_name: str = "",
        pooling: str = "",
    ) -> Embedded:
        """Return vectors that tell the inputs apart: (length, 1, 2). A document's score is minus its distance in length."""
        import struct

        self.embedded.append(inputs)
        if pooling == "rank":
            query, *documents = inputs
            scores = tuple(struct.pack("<f", -abs(len(one) - len(query))) for one in documents)
            return Embedded(id=request_id, vectors=scores, prompt_tokens=sum(len(item) for item in inputs))
        if pooling == "none":
            vectors = tuple(struct.pack("<3f", 1.0, 2.0, 2.0) * len(item) for item in inputs)
            return Embedded(id=request_id, vectors=vectors, prompt_tokens=sum(len(item) for item in inputs), size=3)
        vectors = tuple(struct.pack("<3f", float(len(item)), 1.0, 2.0) for item in inputs)
        return Embedded(id=request_id, vectors=vectors, prompt_tokens=sum(len(item) for item in inputs))

    def models(self) -> tuple[ModelCard, ...]:
        """Return the cards."""
        return self.cards

    def cluster_state(self) -> dict[str, Any]:
        """Return one member."""
        return {"members": [{"name": "one", "state": "alive"}]}

    def unready(self) -> str:
        """Return the scripted reason."""
        return self.unready_reason
