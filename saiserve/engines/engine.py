"""What every source of answers looks like to the dispatcher: a local process, a simulation, a peer or an upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from saiserve.engines.messages import Count, Counted, Embed, Embedded, EngineReply, Generate, Load, Refused

Heard = Callable[[], None]
"""Called for each sign that a question is being worked on; whoever waits may wait longer then."""


def unheard() -> None:
    """Nobody waits for signs."""


class HopError(Exception):
    """The way to the engine broke: refused, timed out, cut or not authentic. Whether it ran is unknown.

    `sent` is False when the request certainly never left, so that trying elsewhere cannot repeat it.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Engine(Protocol):
    """One model, ready to answer. All methods may be called from several tasks at once."""

    @property
    def model(self) -> str:
        """Catalog id of the model."""
        ...

    @property
    def load(self) -> Load:
        """The engine's last own report."""
        ...

    def generate(self, request: Generate) -> AbstractAsyncContextManager[AsyncIterator[EngineReply]]:
        """Start one answer. Leaving the context cancels it, wherever it stands, without waiting for it to stop.

        The iterator ends after a terminal message. It never ends without one, and never raises but HopError.
        """
        ...

    async def count(self, request: Count) -> Counted | Refused:
        """Count a prompt's tokens."""
        ...

    async def embed(self, request: Embed, heard: Heard = unheard) -> Embedded | Refused:
        """Compute vectors, which may take minutes; `heard` is called as it moves on."""
        ...
