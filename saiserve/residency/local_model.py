"""A model of this node as everybody sees it: an `Engine` that is loaded first when it is not there.

While it loads, requests wait here with signs of life, so that neither the entry node nor the client gives up. The wait is
bounded in number and time; what is refused says when to come again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import trio

from saiserve import limits
from saiserve.engines.engine import Engine, Heard, unheard
from saiserve.engines.messages import (
    Count,
    Counted,
    Embed,
    Embedded,
    EngineReply,
    Generate,
    Load,
    Progress,
    RefusalReason,
    Refused,
)
from saiserve.fleet.facts import ModelState
from saiserve.residency.resident import Resident


class LocalModel:
    """One model of this node. Made for each request; holds nothing but the way to it.

    Args:
        begin: orders the model to be loaded, unless it is on the way already.
    """

    def __init__(self, resident: Resident, begin: Callable[[Resident], object]) -> None:
        self._resident = resident
        self._begin = begin

    @property
    def model(self) -> str:
        """Catalog id of the model."""
        return self._resident.entry.id

    @property
    def load(self) -> Load:
        """The engine's last own report; empty while there is none."""
        return self._resident.load

    def generate(self, request: Generate) -> AbstractAsyncContextManager[AsyncIterator[EngineReply]]:
        """As `Engine.generate`, once the model is there."""
        return self._generate(request)

    @asynccontextmanager
    async def _generate(self, request: Generate) -> AsyncIterator[AsyncIterator[EngineReply]]:
        with self._resident.use():
            engine = self._engine
            if engine is None:
                async with aclosing(self._once_loaded(request)) as messages:
                    yield messages
            else:
                async with engine.generate(request) as messages:
                    yield messages

    async def count(self, request: Count) -> Counted | Refused:
        """As `Engine.count`, once the model is there."""
        with self._resident.use():
            engine = await self._wait_for(request.id)
            return engine if isinstance(engine, Refused) else await engine.count(request)

    async def embed(self, request: Embed, heard: Heard = unheard) -> Embedded | Refused:
        """As `Engine.embed`, once the model is there."""
        with self._resident.use():
            engine = await self._wait_for(request.id, heard)
            return engine if isinstance(engine, Refused) else await engine.embed(request, heard)

    @property
    def _engine(self) -> Engine | None:
        return self._resident.engine if self._resident.state is ModelState.READY else None

    async def _once_loaded(self, request: Generate) -> AsyncGenerator[EngineReply, None]:
        async with aclosing(self._waits(request.id)) as signs:
            async for sign in signs:
                yield sign
                if isinstance(sign, Refused):
                    return
        engine = self._resident.engine
        assert engine is not None
        async with engine.generate(request) as messages:
            async for message in messages:
                yield message

    async def _wait_for(self, request_id: str, heard: Heard = unheard) -> Engine | Refused:
        async with aclosing(self._waits(request_id)) as signs:
            async for sign in signs:
                if isinstance(sign, Refused):
                    return sign
                heard()
        assert self._resident.engine is not None
        return self._resident.engine

    async def _waits(self, request_id: str) -> AsyncGenerator[Progress | Refused, None]:
        """Signs of life until the model is there, or one refusal."""
        resident = self._resident
        give_up_at = trio.current_time() + limits.LOAD_WAIT_S
        while self._engine is None:
            refused = self._refusal(request_id, give_up_at)
            if refused is not None:
                yield refused
                return
            if resident.life is None:
                self._begin(resident)
            life = resident.life
            assert life is not None
            yield Progress(request_id, 0)
            with trio.move_on_after(limits.HEARTBEAT_S):
                await (life.ended if resident.is_leaving else life.settled).wait()

    def _refusal(self, request_id: str, give_up_at: float) -> Refused | None:
        """Why the request cannot wait for the model; None when it can."""
        resident, now = self._resident, trio.current_time()

        def refused(reason: RefusalReason, detail: str, retry_after_s: float) -> Refused:
            return Refused(request_id, reason, detail, self.load, retry_after_s=retry_after_s)

        name, life = resident.entry.id, resident.life
        if resident.is_leaving:
            return self._too_long(refused, give_up_at - now)
        if resident.state is ModelState.DRAINING or (life is not None and life.stop.is_set()):
            return refused(RefusalReason.DRAINING, f"{name} is being unloaded", 1.0)
        if resident.is_coming:
            return self._too_long(refused, give_up_at - now)
        if life is not None:
            detail = str(getattr(resident.source, "detail", "")) or "it is not loaded yet"
            return refused(RefusalReason.LOADING, f"{name} cannot answer now: {detail}", limits.LOAD_RETRY_S)
        if now < resident.retry_at:
            return refused(RefusalReason.NO_MODEL, resident.error, resident.retry_at - now)
        if not resident.is_on_demand:
            return refused(RefusalReason.NO_MODEL, f"{name} is not loaded here", limits.LOAD_RETRY_S)
        return None

    def _too_long(self, refused: Callable[[RefusalReason, str, float], Refused], left_s: float) -> Refused | None:
        """A refusal when too many wait, or when the load will take longer than a request may wait."""
        resident = self._resident
        remaining_s = resident.remaining_s(trio.current_time())
        more = f"about {remaining_s:.0f} s more" if remaining_s else "nobody knows how much longer"
        state = f"{resident.entry.id} is being loaded ({resident.stage}, {resident.fraction:.0%}; {more})"
        again_s = max(remaining_s, limits.LOAD_RETRY_S)
        if resident.uses > limits.LOAD_WAITERS_MAX:
            return refused(
                RefusalReason.LOADING, f"{state} and {limits.LOAD_WAITERS_MAX} requests wait for it", again_s
            )
        if left_s <= 0 or remaining_s > left_s:
            return refused(RefusalReason.LOADING, state, again_s)
        return None
