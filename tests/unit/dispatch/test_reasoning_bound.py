"""A bound on reasoning: at its end the node closes the reasoning in the model's stead, and the model goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import msgspec
import pytest
from fake_fleet import FakeFleet, finish_of, request_of, text_of, usage_of

from saiserve.chat.events import StopKind, TextDelta
from saiserve.chat.reasoning import ReasoningCount
from saiserve.chat.request import GenerationRequest, ReasoningMarks
from saiserve.dispatch.clock import clock_ns
from saiserve.dispatch.suspects import GuardedEngine
from saiserve.engines.messages import (
    Count,
    Counted,
    EngineReply,
    Generate,
    RefusalReason,
    Refused,
    Sampling,
    Tokens,
)
from saiserve.engines.simulated import Fault, FaultKind, SimulatedEngine
from saiserve.engines.simulated_script import Rule, scripted
from saiserve.engines.token_runs import merged

pytestmark = pytest.mark.autojump

CLOSING = "\n</think>\n\n"


class Speller(SimulatedEngine):
    """Says a text in tokens that an answer may be made of."""

    async def count(self, request: Count) -> Counted | Refused:
        ids = scripted([Rule(say=request.prompt.text or "")], "") or ()
        return Counted(request.id, len(ids), ids=ids)


def fleet_of(count: int, engine: type[Speller] = Speller) -> FakeFleet:
    fleet = FakeFleet(count)
    fleet.engines |= {name: engine() for name in fleet.engines}
    fleet.guarded |= {
        name: GuardedEngine(engine, fleet.suspects[name], clock_ns) for name, engine in fleet.engines.items()
    }
    return fleet


def bounded(tokens: int, **more: object) -> GenerationRequest:
    marks = ReasoningMarks("<think>", "</think>", begun=True)
    return request_of(reasoning_tokens=tokens, reasoning_marks=marks, **more)


def halves(events: list) -> tuple[int, int]:
    """Tokens before and after the closing mark."""
    seen, places = 0, []
    for event in events:
        if isinstance(event, TextDelta):
            seen += len(event.tokens)
            if "</think>" in event.text:
                places.append(seen - len(event.tokens))
    assert len(places) == 1
    return places[0], seen - places[0]


def logprobs_of(events: list) -> list[int]:
    """Tokens whose log-probabilities were told, in order."""
    return [entry.token for event in events if isinstance(event, TextDelta) for entry in event.logprobs or ()]


@pytest.mark.parametrize("bound", [1, 10, 40])
async def test_reasoning_is_closed_at_its_bound_and_the_answer_goes_on(bound: int) -> None:
    fleet = fleet_of(2)
    events = await fleet.ask(bounded(bound))
    before, after = text_of(events).split(CLOSING)
    assert before
    assert after
    assert halves(events)[0] == bound
    assert usage_of(events).completion_tokens == 64
    assert finish_of(events).kind is StopKind.END
    assert fleet.starts == {"a": 2}, "the place that served goes on"
    fleet.assert_idle()


class Hasty(Speller):
    """So much faster than its reader that tokens come joined; says what bytes are whose unless it is of an older version."""

    joined = 7
    tells_sizes = True

    @asynccontextmanager
    async def generate(self, request: Generate) -> AsyncIterator[AsyncIterator[EngineReply]]:
        async with super().generate(request) as messages, aclosing(self._join(messages)) as joined:
            yield joined

    async def _join(self, messages: AsyncIterator[EngineReply]) -> AsyncGenerator[EngineReply, None]:
        run: Tokens | None = None
        async for message in messages:
            if isinstance(message, Tokens):
                run = message if run is None else merged(run, message)
                if len(run.ids) < self.joined:
                    continue
            if run is not None:
                yield run if self.tells_sizes else msgspec.structs.replace(run, sizes=())
                run = None
            if not isinstance(message, Tokens):
                yield message


@pytest.mark.parametrize("bound", [1, 6, 7, 10, 40])
@pytest.mark.parametrize("logprobs", [None, 2])
async def test_the_bound_is_exact_when_tokens_come_joined(bound: int, logprobs: int | None) -> None:
    sampling = Sampling(seed=7, logprobs=logprobs)
    expected = await fleet_of(1).ask(bounded(bound, sampling=sampling))
    fleet = fleet_of(1, Hasty)
    events = await fleet.ask(bounded(bound, sampling=sampling))
    assert halves(events)[0] == bound
    assert text_of(events) == text_of(expected)
    assert usage_of(events).completion_tokens == usage_of(expected).completion_tokens == 64
    assert logprobs_of(events) == logprobs_of(expected)
    fleet.assert_idle()


async def test_runs_of_an_older_version_are_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hasty, "tells_sizes", False)
    events = await fleet_of(1, Hasty).ask(bounded(10))
    assert halves(events)[0] == 14
    assert usage_of(events).completion_tokens == 64


async def test_the_text_up_to_the_bound_is_what_it_would_have_been() -> None:
    free = text_of(await FakeFleet(1).ask(request_of()))
    before = text_of(await fleet_of(1).ask(bounded(10))).split(CLOSING)[0]
    assert free.startswith(before)


async def test_closing_is_no_failover() -> None:
    fleet = fleet_of(2)
    async with fleet.dispatcher.answer(bounded(10)) as answer:
        assert [event async for event in answer.events]
        assert len(answer.attempts) == 1


async def test_a_break_after_the_bound_is_carried_over_with_the_closed_reasoning() -> None:
    expected = text_of(await fleet_of(2).ask(bounded(10)))
    fleet = fleet_of(2)
    fleet.engines["a"].faults.append(Fault(FaultKind.CUT, at_token=30))
    assert text_of(await fleet.ask(bounded(10))) == expected


async def test_each_choice_has_a_bound_of_its_own() -> None:
    events = await fleet_of(1).ask(bounded(10, choices=2))
    assert [text_of(events, choice).count(CLOSING) for choice in (0, 1)] == [1, 1]


async def test_a_limit_that_ends_in_the_reasoning_stays_a_limit() -> None:
    events = await fleet_of(1).ask(bounded(10, max_tokens=10))
    assert finish_of(events).kind is StopKind.LENGTH


class Mute(SimulatedEngine):
    """Does not say how a text is tokens."""

    async def count(self, request: Count) -> Counted | Refused:
        return Refused(request.id, RefusalReason.BUSY)


async def test_where_the_closing_cannot_be_had_the_answer_goes_on_without() -> None:
    fleet = FakeFleet(1)
    fleet.guarded["a"] = Mute()
    events = await fleet.ask(bounded(10))
    assert CLOSING not in text_of(events)
    assert usage_of(events).completion_tokens == 64


@pytest.mark.parametrize(
    ("begun", "pieces", "spent_at"),
    [
        (True, ["a", "b", "c"], 1),
        (True, ["a", "</think>", "b", "c"], None),
        (False, ["<think>", "a", "b", "c"], 1),
        (False, ["a", "b", "c", "d"], None),
        (True, ["</thi", "nk>", "b"], 1),
    ],
)
def test_only_tokens_inside_count(begun: bool, pieces: list[str], spent_at: int | None) -> None:
    count = ReasoningCount(2, ReasoningMarks("<think>", "</think>", begun))
    spent = [count.is_spent(TextDelta(0, piece, tokens=(1,))) for piece in pieces]
    if spent_at is None:
        assert not any(spent)
    elif pieces[0] == "</thi":
        assert not spent[-1]
    else:
        assert spent.index(True) == spent_at
