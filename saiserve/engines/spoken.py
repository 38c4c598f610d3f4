"""What a source says that makes whole answers rather than tokens: an upstream. It stays inside the entry node.

In the life of an attempt it takes the place of `Tokens`; the other messages are those of every engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from saiserve.chat.events import AnswerEvent
from saiserve.engines.engine import Heard, unheard
from saiserve.engines.messages import Count, Counted, Embed, Embedded, EngineReply, Generate, Load, Refused


@dataclass(frozen=True, slots=True)
class Spoken:
    """The next events of one choice, parsed at their source; its `ChoiceFinished` is among them, `Usage` is not.

    When `relayed`, the client gets `raw`, the bytes they came in, in their place.
    """

    id: str
    events: tuple[AnswerEvent, ...] = ()
    raw: bytes = b""
    relayed: bool = False
    is_end: bool = False
    """The dialect's own end, good or bad, is in `raw`."""


SourceReply = EngineReply | Spoken
"""What follows a `Generate`, whoever answers it."""


class Source(Protocol):
    """Whatever answers: an engine, or an upstream, which also speaks. See `saiserve.engines.engine.Engine`."""

    @property
    def model(self) -> str:
        """Id of the model."""
        ...

    @property
    def load(self) -> Load:
        """Its last own report."""
        ...

    def generate(self, request: Generate) -> AbstractAsyncContextManager[AsyncIterator[SourceReply]]:
        """Start one answer; leaving the context cancels it."""
        ...

    async def count(self, request: Count) -> Counted | Refused:
        """Count a prompt's tokens."""
        ...

    async def embed(self, request: Embed, heard: Heard = unheard) -> Embedded | Refused:
        """Compute vectors."""
        ...
