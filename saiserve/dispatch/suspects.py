"""Requests that were there when an engine process died, and what a node does so that they take nobody with them.

The entry node counts crashes (`failover.py`). The serving node, here, runs one suspect at a time beside its other
requests, and keeps the fingerprints of requests that crashed two engines in quarantine. Both tables are bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import msgspec
from blake3 import blake3

from saiserve import limits
from saiserve.dispatch.attempt import NS
from saiserve.engines.engine import Engine, Heard, unheard
from saiserve.engines.messages import (
    Count,
    Counted,
    Embed,
    Embedded,
    EngineReply,
    Failed,
    Generate,
    Load,
    Progress,
    RefusalReason,
    Refused,
)

Fingerprint = bytes


def fingerprint(request: Generate) -> Fingerprint:
    """What is the same when a client sends a request again: model, prompt and constraint, not ids or seeds."""
    content = msgspec.msgpack.encode((request.model, request.prompt, request.constraint), order="deterministic")
    return blake3(content, derive_key_context="saiserve 2026 suspect fingerprint").digest(length=16)


class Quarantine:
    """Fingerprints that are refused for `limits.QUARANTINE_S`; the oldest makes room. Times are nanoseconds."""

    def __init__(self) -> None:
        self._until: OrderedDict[Fingerprint, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, mark: Fingerprint, now: int) -> None:
        """Refuse this one from now on."""
        self._until[mark] = now + int(limits.QUARANTINE_S * NS)
        self._until.move_to_end(mark)
        while len(self._until) > limits.SUSPECT_FINGERPRINTS_MAX:
            self._until.popitem(last=False)

    def holds(self, mark: Fingerprint, now: int) -> bool:
        """Whether it is refused at `now`."""
        until = self._until.get(mark)
        if until is None:
            return False
        if now >= until:
            del self._until[mark]
            return False
        return True


class Suspects:
    """One per node, shared by everything on it that runs or starts requests."""

    def __init__(self) -> None:
        self.quarantine = Quarantine()
        self.running: str | None = None
        """The suspect request that has the node's one place for suspects."""

    def enter(self, request: Generate, now: int) -> Refused | None:
        """Let a request in, or say why not. Whoever gets in must `leave`."""
        if len(self.quarantine) and self.quarantine.holds(fingerprint(request), now):
            detail = "a request like this one brought down two engines; it is not tried again for a while"
            return Refused(request.id, RefusalReason.QUARANTINED, detail)
        if not request.suspect:
            return None
        if self.running is not None:
            return Refused(request.id, RefusalReason.BUSY, "another suspect request is running here", retry_after_s=1.0)
        self.running = request.id
        return None

    def crashed(self, request: Generate, now: int) -> None:
        """An engine died under it here. For a suspect that is the second time."""
        if request.suspect:
            self.quarantine.add(fingerprint(request), now)

    def leave(self, request: Generate) -> None:
        """It is over here."""
        if self.running == request.id:
            self.running = None


class GuardedEngine:
    """A local engine behind the node's rules for suspects. Wrap each once; local and peer requests both use it.

    It says at once that the request has come, so that an engine in the middle of a long step is not taken for a node
    that does not answer. A request under which the engine's process died, accepted or not, is a suspect.
    """

    def __init__(self, engine: Engine, suspects: Suspects, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._suspects = suspects
        self._clock = clock

    @property
    def model(self) -> str:
        """The model's id."""
        return self._engine.model

    @property
    def load(self) -> Load:
        """The engine's last own report."""
        return self._engine.load

    def generate(self, request: Generate) -> AbstractAsyncContextManager[AsyncIterator[EngineReply]]:
        """As `Engine.generate`, refusing what is in quarantine and second suspects at a time."""
        return self._generate(request)

    @asynccontextmanager
    async def _generate(self, request: Generate) -> AsyncIterator[AsyncIterator[EngineReply]]:
        refused = self._suspects.enter(request, self._clock())
        if refused is not None:
            async with aclosing(_once(msgspec.structs.replace(refused, load=self.load))) as only:
                yield only
            return
        try:
            async with self._engine.generate(request) as messages, aclosing(self._watch(request, messages)) as watched:
                yield watched
        finally:
            self._suspects.leave(request)

    async def _watch(
        self, request: Generate, messages: AsyncIterator[EngineReply]
    ) -> AsyncGenerator[EngineReply, None]:
        yield Progress(request.id, 0)
        async for message in messages:
            if isinstance(message, Failed) and message.kind.makes_suspects:
                self._suspects.crashed(request, self._clock())
            yield message

    async def count(self, request: Count) -> Counted | Refused:
        """As `Engine.count`."""
        return await self._engine.count(request)

    async def embed(self, request: Embed, heard: Heard = unheard) -> Embedded | Refused:
        """As `Engine.embed`."""
        return await self._engine.embed(request, heard)


async def _once(message: EngineReply) -> AsyncGenerator[EngineReply, None]:
    yield message
