"""Whatever an answer is made of, the official client's Responses accumulator rebuilds it from our events."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from openai._models import construct_type
from openai._types import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent

from saiserve.api.responses_reply import ResponseCollector, ResponseEncoder
from saiserve.chat.events import AnswerFailed, StopKind
from saiserve.errors import ApiError, ErrorKind
from tests.property.api.events import answers, gathered, logprobs_in_order, parts_in_order, server_sent

ECHO = {"model": "m", "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}


def encoder(**options):
    return ResponseEncoder(response_id="resp_1", created=1, echo=ECHO, **options)


def stream(events, **options):
    made = encoder(**options)
    sent = server_sent(b"".join(made.encode(event) + made.keepalive() for event in events))
    bodies = [json.loads(data) for _, data in sent]
    assert [name for name, _ in sent] == [body["type"] for body in bodies]
    assert [body["sequence_number"] for body in bodies] == list(range(len(bodies)))
    return bodies


def items(response, *, summarise):
    """What the output items say, in order."""
    said = []
    for item in response.output:
        if item.type == "function_call":
            said.append(("call", (item.call_id, item.name, item.arguments)))
        else:
            kind = "text" if item.type == "message" else "reasoning"
            parts = item.summary if kind == "reasoning" and summarise else item.content
            said.append((kind, "".join(part.text for part in parts)))
    return said


def items_of(events):
    """The output items that the events mean."""
    parts = parts_in_order(events)
    return [(kind, (*said[:2], said[2] or "{}") if kind == "call" else said) for kind, said in parts]


@settings(max_examples=40)
@given(answers(choices_max=1), st.booleans())
def test_the_accumulator_rebuilds_every_item(answer, summarise):
    _, events = answer
    bodies = stream(events, summarise=summarise)
    expected = gathered(1, events).choices[0]
    state = ResponseStreamState(input_tools=omit, text_format=omit)
    for body in bodies:
        state.handle_event(construct_type(type_=ResponseStreamEvent, value=body))
    last = bodies[-1]
    assert last["type"] == ("response.incomplete" if expected.finish is StopKind.LENGTH else "response.completed")
    final = Response.model_validate(last["response"])
    if last["type"] == "response.completed":
        assert state._completed_response.output_text == expected.text
    assert final.output_text == expected.text
    assert items(final, summarise=summarise) == items_of(events)
    has_logprobs = bool(logprobs_in_order(events))
    for item in final.output:
        if item.type == "message":
            (part,) = item.content
            tokens = [bytes(entry.bytes) for entry in part.logprobs]
            assert b"".join(tokens).decode() == (part.text if has_logprobs else "")
            deltas = [b for b in bodies if b["type"] == "response.output_text.delta" and b["item_id"] == item.id]
            assert [bytes(entry["bytes"]) for delta in deltas for entry in delta["logprobs"]] == tokens


@settings(max_examples=40)
@given(answers(choices_max=1), st.booleans())
def test_every_item_has_its_whole_ladder_and_its_done_item_is_the_final_one(answer, summarise):
    _, events = answer
    bodies = stream(events, summarise=summarise)
    assert [body["type"] for body in bodies[:2]] == ["response.created", "response.in_progress"]
    open_item, done = None, []
    for body in bodies[2:-1]:
        kind = body["type"]
        if "prompt_progress" in body:
            assert kind == "response.in_progress"
            continue
        assert body["output_index"] == len(done)
        if kind == "response.output_item.added":
            assert open_item is None
            open_item = body["item"]["id"]
        elif kind == "response.output_item.done":
            assert body["item"]["id"] == open_item
            done.append(body["item"])
            open_item = None
        else:
            assert body["item_id"] == open_item
        if kind.startswith("response.output_text"):
            assert "logprobs" in body
    assert bodies[-1]["response"]["output"] == done
    assert len({item["id"] for item in done}) == len(done)


@settings(max_examples=40)
@given(answers(choices_max=1))
def test_the_whole_response_is_the_streams_last_object(answer):
    _, events = answer
    collector = ResponseCollector(encoder())
    for event in events:
        collector.add(event)
    assert collector.body() == stream(events)[-1]["response"]


@settings(max_examples=40)
@given(answers(choices_max=1), st.data())
def test_a_fault_at_any_point_ends_in_failed_and_nothing_after(answer, data):
    _, events = answer
    at = data.draw(st.integers(0, len(events) - 1))
    failed = AnswerFailed(ApiError(ErrorKind.ENGINE_FAILED, "broken"))
    bodies = stream([*events[:at], failed, *events[at:]])
    assert bodies[0]["type"] == "response.created"
    assert bodies[-1]["type"] == "response.failed"
    assert bodies[-1]["response"]["error"] == {"code": "server_error", "message": "broken"}
    assert not any(body["type"] in {"response.completed", "response.incomplete"} for body in bodies)
