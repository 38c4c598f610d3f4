"""What clients may ask of reasoning: on, off, how hard, how long."""

from __future__ import annotations

import json
from typing import Any

import pytest

from saiserve.api.chat_request import decode_chat
from saiserve.api.context import Origin
from saiserve.api.messages_request import check_budget, decode_count, decode_messages
from saiserve.api.prepare import prepare
from saiserve.api.responses_request import decode_response
from saiserve.api.service import ModelCard
from saiserve.chat.request import ReasoningMarks
from saiserve.errors import ApiError

ORIGIN = Origin("r1", "k", 1, lambda: 1, ())
THINKER = ModelCard("m", capabilities=frozenset({"chat", "reasoning"}), reasoning_begun=True)
HI = [{"role": "user", "content": "hi"}]


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": HI, "max_tokens": 2000, **fields}).encode()


@pytest.mark.parametrize(
    ("thinking", "wanted", "bound"),
    [
        (None, False, None),
        ({"type": "disabled"}, False, None),
        ({"type": "disabled", "budget_tokens": 50}, False, None),
        ({"type": "adaptive"}, True, None),
        ({"type": "adaptive", "display": "summarized"}, True, None),
        ({"type": "between_tools"}, True, None),
        ({"type": "enabled", "budget_tokens": 1024}, True, 1024),
        ({"type": "enabled", "budget_tokens": 50}, True, 50),
    ],
)
def test_thinking_is_off_on_or_bounded(thinking: Any, wanted: bool, bound: int | None) -> None:
    for request in (decode_messages(body(thinking=thinking), ORIGIN), decode_count(body(thinking=thinking), ORIGIN)):
        assert request.template_options["enable_thinking"] is wanted
        assert request.reasoning_tokens == bound
        made = prepare(request, THINKER, lambda: "c").request
        assert made.reasoning_tokens == bound
        assert made.reasoning_marks == ReasoningMarks("<think>", "</think>", begun=wanted)


@pytest.mark.parametrize(
    ("thinking", "param"),
    [
        ({"type": "enabled"}, "thinking.budget_tokens"),
        ({"type": "enabled", "budget_tokens": None}, "thinking.budget_tokens"),
        ({"type": "enabled", "budget_tokens": 0}, "thinking.budget_tokens"),
        ({"type": "enabled", "budget_tokens": -1}, "thinking.budget_tokens"),
        ({"type": "enabled", "budget_tokens": 1.5}, "thinking.budget_tokens"),
        ({"type": "enabled", "budget_tokens": "many"}, "thinking.budget_tokens"),
        ({"type": "loudly"}, "thinking.type"),
        ({}, "thinking.type"),
        ("enabled", "thinking"),
    ],
)
def test_a_wrong_word_about_thinking_is_named(thinking: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        decode_messages(body(thinking=thinking), ORIGIN)
    assert caught.value.param is not None
    assert caught.value.param.startswith("thinking")
    assert param in caught.value.message or param == "thinking.type"


def test_a_budget_leaves_room_for_the_answer_unless_it_is_one_of_a_whole_turn() -> None:
    request = decode_messages(body(thinking={"type": "enabled", "budget_tokens": 2000}), ORIGIN)
    with pytest.raises(ApiError, match="max_tokens: must be greater than"):
        check_budget(request, "")
    check_budget(request, "effort-2025-11-24,interleaved-thinking-2025-05-14")
    check_budget(decode_messages(body(thinking={"type": "enabled", "budget_tokens": 1999}), ORIGIN), "")


@pytest.mark.parametrize(
    ("fields", "bound", "wanted"),
    [
        ({}, None, None),
        ({"reasoning_budget_tokens": 40}, 40, None),
        ({"thinking_budget_tokens": 40}, 40, None),
        ({"reasoning_budget_tokens": -1}, None, None),
        ({"reasoning_budget_tokens": 0}, 0, False),
    ],
)
def test_llama_servers_bound_is_taken_on_chat(fields: dict[str, int], bound: int | None, wanted: bool | None) -> None:
    request = decode_chat(body(**fields), ORIGIN).request
    assert request.reasoning_tokens == bound
    assert request.template_options.get("enable_thinking") is wanted


EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"]


@pytest.mark.parametrize("effort", EFFORTS)
def test_effort_is_told_to_the_template_and_none_switches_thinking_off(effort: str) -> None:
    chat = decode_chat(body(reasoning_effort=effort), ORIGIN).request
    responses = decode_response(
        json.dumps({"model": "m", "input": "hi", "reasoning": {"effort": effort}}).encode(), ORIGIN
    ).request
    for request in (chat, responses):
        assert request.template_options["reasoning_effort"] == effort
        assert request.template_options["enable_thinking"] is (effort != "none")


@pytest.mark.parametrize("effort", ["hardest", 3, {}])
def test_an_effort_that_is_none_is_named(effort: Any) -> None:
    with pytest.raises(ApiError) as caught:
        decode_chat(body(reasoning_effort=effort), ORIGIN)
    assert caught.value.param == "reasoning_effort"
    with pytest.raises(ApiError) as caught:
        decode_response(json.dumps({"model": "m", "input": "hi", "reasoning": {"effort": effort}}).encode(), ORIGIN)
    assert caught.value.param == "reasoning.effort"


def test_no_marks_where_nothing_reasons() -> None:
    request = decode_messages(body(thinking={"type": "enabled", "budget_tokens": 50}), ORIGIN)
    plain = ModelCard("m", capabilities=frozenset({"chat"}))
    assert prepare(request, plain, lambda: "c").request.reasoning_marks is None
