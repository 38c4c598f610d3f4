"""A stop string inside reasoning stops nothing, wherever the answer runs and however often it moves."""

from __future__ import annotations

import pytest
from fake_fleet import FakeFleet, finish_of, plain, request_of, text_of, usage_of

from saiserve.chat.events import ChoiceFinished, StopKind
from saiserve.chat.request import GenerationRequest, ReasoningMarks
from saiserve.dispatch.dispatcher import template_of
from saiserve.dispatch.ports import Fitted
from saiserve.engines.simulated import Fault, FaultKind
from saiserve.engines.simulated_script import Rule

pytestmark = pytest.mark.autojump

THOUGHT = "<think>\nI must not say END yet, and END is near.\n</think>\n\n"
ANSWER = "It is here: "


def fleet_of(count: int, say: str) -> FakeFleet:
    return FakeFleet(count, plain(script=(Rule(say=say),)))


def thinking(*stops: str, begun: bool = False, **more: object) -> GenerationRequest:
    marks = ReasoningMarks("<think>", "</think>", begun=begun)
    return request_of(stop=stops, reasoning_marks=marks, **more)


@pytest.mark.parametrize("begun", [False, True])
async def test_only_the_answer_is_stopped(begun: bool) -> None:
    thought = THOUGHT.removeprefix("<think>") if begun else THOUGHT
    events = await fleet_of(1, f"{thought}{ANSWER}END and more").ask(thinking("END", begun=begun))
    assert text_of(events) == thought + ANSWER
    assert finish_of(events) == ChoiceFinished(0, StopKind.STOP_STRING, "END")


async def test_the_newlines_between_reasoning_and_answer_stop_nothing() -> None:
    events = await fleet_of(1, f"{THOUGHT}one\n\ntwo").ask(thinking("\n\n"))
    assert text_of(events) == f"{THOUGHT}one"


@pytest.mark.parametrize("cut_at", range(0, 26, 3))
async def test_an_answer_that_moved_is_stopped_at_the_same_place(cut_at: int) -> None:
    fleet = fleet_of(2, f"{THOUGHT}{ANSWER}END and more")
    fleet.engines["a"].faults.append(Fault(FaultKind.CUT, at_token=cut_at))
    events = await fleet.ask(thinking("END"))
    assert text_of(events) == THOUGHT + ANSWER
    assert finish_of(events) == ChoiceFinished(0, StopKind.STOP_STRING, "END")
    assert fleet.starts == {"a": 1, "b": 1}
    assert len(fleet.engines["b"].started[0].resume_tokens) == cut_at
    fleet.assert_idle()


async def test_reasoning_that_never_closes_ends_by_length() -> None:
    events = await fleet_of(1, "<think>END " + "and END again " * 50).ask(thinking("END", max_tokens=40))
    assert finish_of(events) == ChoiceFinished(0, StopKind.LENGTH)
    assert usage_of(events).completion_tokens == 40


async def test_an_answer_without_reasoning_is_stopped_from_its_first_character_on() -> None:
    for said, shown in (("END of it", ""), ("<th END", "<th "), (" END", " "), ("<", "<")):
        events = await fleet_of(1, said).ask(thinking("END"))
        assert text_of(events) == shown
        assert finish_of(events).kind is (StopKind.STOP_STRING if "END" in said else StopKind.END)


def test_an_engine_is_told_stop_strings_only_where_nothing_reasons() -> None:
    assert template_of(thinking("END"), 0).stop == ()
    assert template_of(request_of(stop=("END",)), 0).stop == ("END",)


async def test_the_same_holds_for_a_request_that_is_fitted_when_its_model_is_known() -> None:
    fleet = fleet_of(1, f"{THOUGHT}{ANSWER}END and more")
    fleet.dispatcher.fit = lambda request, _: Fitted(thinking("END"), lambda event: [event])
    events = await fleet.ask(request_of(stop=("END",)))
    assert text_of(events) == THOUGHT + ANSWER
    assert fleet.engines["a"].started[0].stop == ()
