"""A request that brings engines down, and the innocent ones beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest
import trio
from fake_fleet import FakeFleet, plain, request_of, text_of, usage_of

from saiserve import limits
from saiserve.chat.events import AnswerEvent, AnswerFailed
from saiserve.dispatch.attempt import NS
from saiserve.dispatch.suspects import GuardedEngine, Quarantine, Suspects, fingerprint
from saiserve.engines.engine import HopError
from saiserve.engines.messages import EngineReply, Failed, FailureKind, Generate, Prompt, RefusalReason, Sampling
from saiserve.engines.simulated import Fault, FaultKind, SimulatedEngine
from saiserve.errors import ApiError, ErrorKind

SETTINGS = plain(lanes=16, faults=(Fault(FaultKind.CRASH, at_token=20, marker="POISON"),))


@pytest.mark.autojump
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
async def test_the_poison_fails_at_its_second_crash_and_the_innocent_of_its_batch_survive(nodes: int) -> None:
    fleet = FakeFleet(nodes, SETTINGS)
    answers: dict[str, list[AnswerEvent]] = {}

    async def one(name: str, text: str) -> None:
        answers[name] = await fleet.ask(request_of(text, id=name))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, "poison", "POISON")
        for number in range(8):
            nursery.start_soon(one, f"innocent{number}", f"Question {number}")
    failure = answers.pop("poison")[-1]
    assert isinstance(failure, AnswerFailed)
    assert failure.error.row.status == 500
    for number in range(8):
        events = answers[f"innocent{number}"]
        assert text_of(events) == text_of(await FakeFleet(1).ask(request_of(f"Question {number}")))
        assert usage_of(events).completion_tokens == 64
    crashes = sum(g.prompt.messages is not None and "POISON" in str(g.prompt) for g in started(fleet))
    assert crashes == 2
    fleet.assert_idle()


@pytest.mark.autojump
async def test_the_like_of_a_poison_is_refused_everywhere_it_was_seen_twice() -> None:
    fleet = FakeFleet(3, SETTINGS)
    assert isinstance((await fleet.ask(request_of("POISON")))[-1], AnswerFailed)
    with pytest.raises(ApiError) as caught:
        await fleet.ask(request_of("POISON", id="again"))
    assert caught.value.kind is ErrorKind.ENGINE_FAILED
    assert sum(fleet.starts.values()) == 2
    async with fleet.guarded["b"].generate(generate_of(request_like(fleet))) as messages:
        (refused,) = [message async for message in messages]
    assert refused.reason is RefusalReason.QUARANTINED  # type: ignore[union-attr]


@pytest.mark.autojump
async def test_a_poison_that_kills_engines_before_they_accept_it_is_stopped_at_the_second_too() -> None:
    fleet = FakeFleet(4, plain(faults=(Fault(FaultKind.CRASH, at_token=-1, marker="POISON"),)))
    with pytest.raises(ApiError) as caught:
        await fleet.ask(request_of("POISON"))
    assert caught.value.kind is ErrorKind.ENGINE_FAILED
    assert fleet.starts == {"a": 1, "b": 1}
    assert len(fleet.suspects["b"].quarantine) == 1
    fleet.assert_idle()


@pytest.mark.autojump
async def test_suspects_run_one_at_a_time_on_a_node() -> None:
    fleet = FakeFleet(2, plain(lanes=16))
    fleet.engines["a"].faults.append(Fault(FaultKind.CRASH, at_token=10, marker="Question 0", times=1))
    most = 0

    async def one(number: int) -> None:
        events = await fleet.ask(request_of(f"Question {number}", id=f"r{number}"))
        assert usage_of(events).completion_tokens == 64

    async def look() -> None:
        nonlocal most
        while True:
            most = max(most, fleet.engines["b"].load.busy)
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        async with trio.open_nursery() as inner:
            for number in range(5):
                inner.start_soon(one, number)
        nursery.cancel_scope.cancel()
    assert most == 1
    assert len(started(fleet)) == 10
    fleet.assert_idle()


@pytest.mark.autojump
async def test_the_death_of_a_node_makes_no_suspects() -> None:
    fleet = FakeFleet(3)
    fleet.engines["a"].faults.append(Fault(FaultKind.CUT, at_token=10))
    fleet.engines["b"].faults.append(Fault(FaultKind.CUT, at_token=20))
    assert usage_of(await fleet.ask(request_of())).completion_tokens == 64
    assert not any(generate.suspect for generate in started(fleet))


@pytest.mark.autojump
async def test_a_suspect_is_tried_on_one_other_node_ever_even_if_that_one_only_breaks() -> None:
    fleet = FakeFleet(3)
    fleet.engines["a"].faults.append(Fault(FaultKind.CRASH, at_token=10))
    fleet.engines["b"].faults.append(Fault(FaultKind.CUT, at_token=20))
    events = await fleet.ask(request_of())
    assert isinstance(events[-1], AnswerFailed)
    assert fleet.starts == {"a": 1, "b": 1}


class Ending(SimulatedEngine):
    """Ends every request before accepting it: with a failure of this kind, or with a broken hop."""

    def __init__(self, kind: FailureKind | None) -> None:
        super().__init__()
        self.kind = kind

    @asynccontextmanager
    async def generate(self, request: Generate) -> AsyncIterator[AsyncIterator[EngineReply]]:
        async def replies() -> AsyncIterator[EngineReply]:
            await trio.lowlevel.checkpoint()
            if self.kind is None:
                raise HopError("gone", sent=True)
            yield Failed(request.id, self.kind)

        yield replies()


@pytest.mark.parametrize(
    ("kind", "counted"),
    [(None, 0), (FailureKind.UNLOADED, 0), (FailureKind.INTERNAL, 0), (FailureKind.CRASH, 1), (FailureKind.HANG, 1)],
)
async def test_only_the_death_of_an_engine_counts_against_a_suspect(kind: FailureKind | None, counted: int) -> None:
    suspects = Suspects()
    guarded = GuardedEngine(Ending(kind), suspects, lambda: 0)
    suspect = Generate("1", "m", Prompt(text="x"), Sampling(seed=1), suspect=True)
    with nullcontext() if kind else pytest.raises(HopError):
        async with guarded.generate(suspect) as messages:
            assert [message async for message in messages]
    assert len(suspects.quarantine) == counted
    assert suspects.running is None


def test_quarantine_is_bounded_and_ends() -> None:
    quarantine = Quarantine()
    for number in range(limits.SUSPECT_FINGERPRINTS_MAX + 10):
        quarantine.add(number.to_bytes(2, "big"), now=0)
    assert len(quarantine) == limits.SUSPECT_FINGERPRINTS_MAX
    assert not quarantine.holds((0).to_bytes(2, "big"), now=1)
    last = (limits.SUSPECT_FINGERPRINTS_MAX + 9).to_bytes(2, "big")
    assert quarantine.holds(last, now=1)
    assert not quarantine.holds(last, now=int(limits.QUARANTINE_S * NS))


def test_a_fingerprint_ignores_ids_seeds_and_what_was_answered() -> None:
    one = Generate("1", "m", Prompt(text="x"), Sampling(seed=1))
    other = Generate("2", "m", Prompt(text="x"), Sampling(seed=2), resume_tokens=(1, 2), suspect=True)
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(one) != fingerprint(Generate("1", "m", Prompt(text="y"), Sampling(seed=1)))


def started(fleet: FakeFleet) -> list[Generate]:
    return [generate for engine in fleet.engines.values() for generate in engine.started]


def request_like(fleet: FakeFleet) -> Generate:
    return fleet.engines["b"].started[0]


def generate_of(like: Generate) -> Generate:
    return Generate("fresh", like.model, like.prompt, Sampling(seed=99))
