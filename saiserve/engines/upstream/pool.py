"""All upstream targets of a node: their connections, their rests, and the engines behind candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from saiserve import limits
from saiserve.chat.request import GenerationRequest
from saiserve.engines.upstream.targets import Target
from saiserve.fleet.view import UpstreamModel

if TYPE_CHECKING:
    import httpx2

    from saiserve.engines.upstream.engine import UpstreamEngine

NS = 1_000_000_000


@dataclass(slots=True)
class TargetState:
    """One target as this node finds it."""

    target: Target
    clock: Callable[[], int]
    running: int = 0
    """Requests of this node there now."""
    faults: int = 0
    """Faults in a row."""
    rests_until: int = 0
    _client: httpx2.AsyncClient | None = None

    def client(self) -> httpx2.AsyncClient:
        """Its connections, opened when they are first needed."""
        if self._client is None:
            import httpx2  # a node without upstreams needs none

            self._client = httpx2.AsyncClient(
                timeout=httpx2.Timeout(None, connect=limits.UPSTREAM_CONNECT_S),
                limits=httpx2.Limits(max_connections=self.target.lanes, max_keepalive_connections=self.target.lanes),
                follow_redirects=False,
                trust_env=not self.target.is_loopback,
            )
        return self._client

    def worked(self) -> None:
        """It answered."""
        self.faults = 0

    def failed(self) -> None:
        """It could not be reached or used; after a few times in a row it rests, so that others are asked at once."""
        self.faults += 1
        if self.faults >= limits.UPSTREAM_FAULTS_MAX:
            self.rests_until = self.clock() + int(limits.UPSTREAM_REST_S * NS)

    async def aclose(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.aclose()


class Upstreams:
    """The targets of one node. `clock` is int nanoseconds."""

    def __init__(self, targets: Iterable[Target], clock: Callable[[], int]) -> None:
        self._clock = clock
        self.states = {target.name: TargetState(target, clock) for target in targets}

    def models(self) -> tuple[UpstreamModel, ...]:
        """Every model of every target, as the fleet's view takes them."""
        now = self._clock()
        return tuple(
            UpstreamModel(
                target=state.target.name,
                model=model.id,
                context_tokens=model.context_tokens,
                tags=model.capabilities,
                lanes=state.target.lanes,
                price_in=model.price_in,
                price_out=model.price_out,
                resting=now < state.rests_until,
            )
            for state in self.states.values()
            for model in state.target.models.values()
        )

    def targets_of(self, model: str) -> frozenset[str]:
        """Names of the targets that have a model."""
        return frozenset(name for name, state in self.states.items() if model in state.target.models)

    def engine(
        self, target: str, model: str, request: GenerationRequest | None, *, may_relay: bool = True
    ) -> UpstreamEngine | None:
        """What answers a request at a target; None when it is not configured."""
        from saiserve.engines.upstream.engine import UpstreamEngine  # brings the HTTP client along

        state = self.states.get(target)
        if state is None or model not in state.target.models:
            return None
        original = (request.original or request) if request is not None else None
        return UpstreamEngine(state, state.target.models[model], original, may_relay)

    async def run(self) -> None:
        """Keep connections for as long as the node runs, then close them."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(1.0, shield=True):
                for state in self.states.values():
                    await state.aclose()
