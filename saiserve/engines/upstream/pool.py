"""All upstream targets of a node: their connections, their rests, and the engines behind candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from saiserve import limits
from saiserve.chat.request import GenerationRequest
from saiserve.engines.upstream.tally import Outcome, TargetTally, Visit
from saiserve.engines.upstream.targets import Target
from saiserve.engines.waits import NS
from saiserve.fleet.view import UpstreamModel

if TYPE_CHECKING:
    import httpx2

    from saiserve.engines.upstream.engine import UpstreamEngine


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
    tally: TargetTally = field(default_factory=TargetTally)
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

    @property
    def is_resting(self) -> bool:
        """Whether others are asked before it."""
        return self.clock() < self.rests_until

    @contextmanager
    def visit(self) -> Iterator[Visit]:
        """One request at the target, counted and judged when it is over."""
        visit = Visit(self.clock(), self.clock())
        self.running += 1
        try:
            yield visit
        finally:
            self.running -= 1
            visit.left(self.clock())
            self.tally.add(visit, self.clock())
            self._judge(visit.outcome)

    def _judge(self, outcome: Outcome) -> None:
        """After a few failures in a row it rests, so that others are asked at once; any answer of its own ends the row."""
        if outcome in (Outcome.ANSWERED, Outcome.REFUSED):
            self.faults = 0
        elif outcome is Outcome.FAILED:
            self.faults += 1
            if self.faults >= limits.UPSTREAM_FAULTS_MAX:
                self.tally.rests += not self.is_resting
                self.rests_until = self.clock() + int(limits.UPSTREAM_REST_S * NS)

    async def aclose(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.aclose()


class Upstreams:
    """The targets of one node. `clock` is int nanoseconds."""

    def __init__(self, targets: Iterable[Target], clock: Callable[[], int]) -> None:
        self.states = {target.name: TargetState(target, clock) for target in targets}

    def models(self) -> tuple[UpstreamModel, ...]:
        """Every model of every target, as the fleet's view takes them."""
        return tuple(
            UpstreamModel(
                target=state.target.name,
                model=model.id,
                context_tokens=model.context_tokens,
                tags=model.capabilities,
                lanes=state.target.lanes,
                price_in=model.price_in,
                price_out=model.price_out,
                resting=state.is_resting,
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
