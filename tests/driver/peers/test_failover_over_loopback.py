"""Answers over real sockets whose serving node goes away, or whose client does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
from loopback import Served, served

from saiserve.chat.events import AnswerEvent, ChoiceFinished, Started, TextDelta, Usage
from saiserve.chat.request import Dialect, GenerationRequest, Message, Role, TextPart
from saiserve.dispatch.attempt import NS, Deadlines
from saiserve.dispatch.dispatcher import Dispatcher
from saiserve.engines.engine import Engine
from saiserve.engines.messages import Load, Sampling
from saiserve.engines.simulated import SimulatedSettings
from saiserve.routing.candidate import Candidate, Placement, Residence
from saiserve.routing.decision import Decision, Ranked
from tests.fakes.patience import WAIT_S

SETTINGS = SimulatedSettings(decode_rate=2_000.0, prefill_rate=1e6)
PATIENT = Deadlines(*[int(WAIT_S * NS)] * 4)
"""A stop of this process is no death of a node."""


class Entry:
    """A node without an engine of its own, in front of the served ones."""

    def __init__(self, nodes: dict[str, Served]) -> None:
        self.nodes = nodes
        self._change = trio.Event()
        self.dispatcher = Dispatcher(route=self.route, places=self.place, news=self, deadlines=PATIENT)

    async def route(self, request: GenerationRequest) -> Decision:
        candidates = [
            Candidate(name, name, "simulated", Placement.PEER, Residence.READY, True, digest=b"equal000")
            for name in self.nodes
        ]
        return Decision(tuple(Ranked(candidate) for candidate in candidates), None)

    def place(self, candidate: Candidate, request: GenerationRequest) -> Engine:
        return self.nodes[candidate.node].client.engine("b", candidate.model, key_name=request.key_name)

    def started(self, candidate: Candidate, request: GenerationRequest) -> None:
        pass

    def ended(self, candidate: Candidate, *, is_broken: bool) -> None:
        self._change.set()
        self._change = trio.Event()

    def reported(self, candidate: Candidate, load: Load) -> None:
        pass

    def cached(self, candidate: Candidate, request: GenerationRequest, prompt_tokens: int, cached_tokens: int) -> None:
        pass

    def is_dead(self, candidate: Candidate) -> bool:
        return False

    async def changed(self) -> None:
        await self._change.wait()


@asynccontextmanager
async def entry(count: int, settings: SimulatedSettings = SETTINGS) -> AsyncIterator[Entry]:
    async with AsyncExitStack() as stack:
        yield Entry({f"node{n}": await stack.enter_async_context(served(settings)) for n in range(count)})


def request_of(text: str = "Tell me.") -> GenerationRequest:
    return GenerationRequest(
        id="r1",
        dialect=Dialect.CHAT,
        model="simulated",
        sampling=Sampling(seed=7),
        messages=(Message(Role.USER, (TextPart(text),)),),
        max_tokens=64,
    )


async def ask(fleet: Entry, kill_at: int | None = None) -> list[AnswerEvent]:
    events: list[AnswerEvent] = []
    async with fleet.dispatcher.answer(request_of()) as answer:
        async for event in answer.events:
            events.append(event)
            if kill_at is not None and answer.usage.completion_tokens >= kill_at:
                fleet.nodes["node0"].stop()
    return events


def text_of(events: list[AnswerEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def assert_carried_over(indexes: range | tuple[int, ...]) -> None:
    async with entry(1) as fleet:
        expected = text_of(await ask(fleet))
    for index in indexes:
        async with entry(2) as fleet:
            events = await ask(fleet, kill_at=index)
            assert text_of(events) == expected, index
            usage = events[-1]
            assert isinstance(usage, Usage)
            assert usage.completion_tokens == 64
            assert [type(event) for event in events].count(Started) == 1
            assert [type(event) for event in events].count(ChoiceFinished) == 1


async def test_a_serving_node_killed_early_in_the_middle_or_late_goes_unseen() -> None:
    await assert_carried_over((0, 1, 31, 63))


@pytest.mark.slow
async def test_a_serving_node_killed_at_any_token_of_64_goes_unseen() -> None:
    await assert_carried_over(range(65))


@pytest.mark.parametrize("phase", ["prefill", "queued", "streaming"])
async def test_a_client_that_goes_away_stops_the_work_on_the_other_node(phase: str) -> None:
    # For minutes, so that it is not over before the client goes.
    settings = SimulatedSettings(lanes=1, decode_rate=1.0, prefill_rate=0.1 if phase == "prefill" else 1e6)
    async with entry(1, settings) as fleet, trio.open_nursery() as nursery:
        engine = fleet.nodes["node0"].engine
        if phase == "queued":
            nursery.start_soon(ask, fleet)
            with trio.fail_after(WAIT_S):
                while not engine.load.busy:
                    await trio.sleep(0.01)
        async with fleet.dispatcher.answer(request_of("another")) as answer:
            async for event in answer.events:
                if phase != "streaming" or isinstance(event, TextDelta):
                    break
        with trio.fail_after(WAIT_S):
            while engine.load.queued or (phase != "queued" and engine.load.busy):
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
        if phase == "queued":
            assert [g for g in engine.started if "another" in str(g.prompt)] == []
