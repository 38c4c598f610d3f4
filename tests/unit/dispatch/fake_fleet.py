"""A fleet in one process: simulated engines, a router that ranks by load, and news that tests can make."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import trio

from saiserve.chat.events import AnswerEvent, AnswerFailed, ChoiceFinished, TextDelta, Usage
from saiserve.chat.request import Dialect, GenerationRequest, Message, Role, TextPart
from saiserve.dispatch.clock import clock_ns
from saiserve.dispatch.dispatcher import Dispatcher
from saiserve.dispatch.suspects import GuardedEngine, Suspects
from saiserve.engines.engine import Engine
from saiserve.engines.messages import Load, Sampling
from saiserve.engines.simulated import SimulatedEngine, SimulatedSettings
from saiserve.errors import ErrorKind
from saiserve.routing.candidate import Candidate, Placement, Residence
from saiserve.routing.decision import Decision, Ranked, Refusal

DIGEST = b"digest00"


def request_of(text: str = "Tell me.", *, id: str = "r1", **more: object) -> GenerationRequest:  # noqa: A002
    values: dict[str, object] = {
        "sampling": Sampling(seed=7),
        "messages": (Message(Role.USER, (TextPart(text),)),),
        "max_tokens": 64,
        "model": "simulated",
    }
    return GenerationRequest(id=id, dialect=Dialect.CHAT, **{**values, **more})  # type: ignore[arg-type]


class FakeFleet:
    """Nodes `a`, `b`, …; node `a` is where requests enter. Order: first by name unless `prefer` says otherwise."""

    def __init__(self, count: int = 3, settings: SimulatedSettings | None = None) -> None:
        self.engines = {name: SimulatedEngine(settings) for name in "abcdefgh"[:count]}
        self.suspects = {name: Suspects() for name in self.engines}
        self.guarded: dict[str, Engine] = {
            name: GuardedEngine(engine, self.suspects[name], clock_ns) for name, engine in self.engines.items()
        }
        self.prefer = list(self.engines)
        self.digests = dict.fromkeys(self.engines, DIGEST)
        self.dead: set[str] = set()
        self.hidden: set[str] = set()
        self.starts: Counter[str] = Counter()
        self.open: Counter[str] = Counter()
        self.loads: list[tuple[str, Load]] = []
        self.refusal: Refusal | None = None
        self._changed = trio.Event()
        self.dispatcher = Dispatcher(
            route=self.route, places=lambda c, _: self.guarded.get(c.node), news=self, suspects=self.suspects["a"]
        )

    def candidate(self, name: str) -> Candidate:
        placement = Placement.LOCAL if name == "a" else Placement.PEER
        return Candidate(
            f"{name}/simulated", name, "simulated", placement, Residence.READY, True, digest=self.digests[name]
        )

    async def route(self, request: GenerationRequest) -> Decision:
        if self.refusal is not None:
            return Decision((), self.refusal)
        names = [name for name in self.prefer if name not in self.hidden]
        if not names:
            return Decision((), Refusal(ErrorKind.MODEL_UNAVAILABLE, "nobody", 1.0))
        return Decision(tuple(Ranked(self.candidate(name)) for name in names), None)

    def change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def started(self, candidate: Candidate, request: GenerationRequest) -> None:
        self.starts[candidate.node] += 1
        self.open[candidate.node] += 1

    def ended(self, candidate: Candidate, *, is_broken: bool) -> None:
        self.open[candidate.node] -= 1
        self.change()

    def reported(self, candidate: Candidate, load: Load) -> None:
        self.loads.append((candidate.node, load))

    def cached(self, candidate: Candidate, request: GenerationRequest, prompt_tokens: int, cached_tokens: int) -> None:
        pass

    def is_dead(self, candidate: Candidate) -> bool:
        return candidate.node in self.dead

    async def changed(self) -> None:
        await self._changed.wait()

    async def ask(self, request: GenerationRequest) -> list[AnswerEvent]:
        async with self.dispatcher.answer(request) as answer:
            return [event async for event in answer.events]

    def assert_idle(self) -> None:
        """Every gauge is back at zero."""
        assert not +self.open
        assert all(engine.load.busy == 0 and engine.load.queued == 0 for engine in self.engines.values())
        assert len(self.dispatcher.waiting) == 0
        assert all(suspects.running is None for suspects in self.suspects.values())


def text_of(events: list[AnswerEvent], choice: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.choice == choice)


def usage_of(events: list[AnswerEvent]) -> Usage:
    usage = events[-1]
    assert isinstance(usage, Usage), usage
    return usage


def finish_of(events: list[AnswerEvent], choice: int = 0) -> ChoiceFinished:
    (finish,) = [event for event in events if isinstance(event, ChoiceFinished) and event.choice == choice]
    return finish


def failure_of(events: list[AnswerEvent]) -> AnswerFailed:
    failure = events[-1]
    assert isinstance(failure, AnswerFailed), failure
    return failure


def plain(settings: SimulatedSettings | None = None, **changes: object) -> SimulatedSettings:
    return replace(settings or SimulatedSettings(), **changes)  # type: ignore[arg-type]
