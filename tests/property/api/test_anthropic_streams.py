"""Whatever an answer is made of, Anthropic's own accumulator rebuilds it from our stream."""

from __future__ import annotations

import json

from anthropic._models import construct_type
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from saiserve.api.gathered import finish_kind
from saiserve.api.messages_reply import SIGNATURE, STOP_REASONS, MessageCollector, MessageStreamEncoder
from saiserve.chat.events import AnswerFailed, ReasoningDelta
from saiserve.errors import ApiError, ErrorKind
from tests.property.api.events import answers, gathered, parts_in_order, server_sent


def stream(events, *, thinking=True):
    encoder = MessageStreamEncoder(message_id="msg_1", model="m", thinking=thinking)
    return server_sent(b"".join(encoder.encode(event) + encoder.keepalive() for event in events))


def rebuilt(events, *, thinking):
    """The message the client's own accumulator makes of the stream."""
    snapshot, buffers = None, {}
    for name, data in stream(events, thinking=thinking):
        body = json.loads(data)
        assert name == body["type"]
        if name == "ping":
            continue
        event = construct_type(type_=RawMessageStreamEvent, value=body)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    return snapshot


def blocks(message):
    """The blocks of a message, in order."""
    wanted = {"text": ("text",), "thinking": ("thinking", "signature"), "tool_use": ("id", "name", "input")}
    return [(block.type, *(getattr(block, name) for name in wanted[block.type])) for block in message.content]


def blocks_of(events, *, thinking):
    """The blocks that the events mean."""
    shown = [event for event in events if thinking or not isinstance(event, ReasoningDelta)]
    made = []
    for kind, said in parts_in_order(shown):
        if kind == "call":
            call_id, name, given_arguments = said
            made.append(("tool_use", call_id, name, json.loads(given_arguments or "{}")))
        else:
            made.append(("text", said) if kind == "text" else ("thinking", said, SIGNATURE))
    return made


@settings(max_examples=40)
@given(answers(choices_max=1), st.booleans())
def test_the_accumulator_rebuilds_every_block(answer, thinking):
    _, events = answer
    snapshot = rebuilt(events, thinking=thinking)
    expected = gathered(1, events)
    wanted = expected.choices[0]
    assert blocks(snapshot) == blocks_of(events, thinking=thinking)
    assert snapshot.stop_reason == STOP_REASONS[finish_kind(wanted.finish, called=bool(wanted.calls))]
    assert snapshot.stop_sequence == wanted.stop_string
    assert snapshot.usage.input_tokens + snapshot.usage.cache_read_input_tokens == expected.usage.prompt_tokens
    assert snapshot.usage.output_tokens == expected.usage.completion_tokens


@settings(max_examples=40)
@given(answers(choices_max=1))
def test_events_keep_the_order_clients_trip_over(answer):
    _, events = answer
    names = []
    opened, is_open, deltas = -1, False, 0
    for name, data in stream(events):
        body = json.loads(data)
        if name == "ping":
            continue
        names.append(name)
        if name == "content_block_start":
            assert not is_open
            opened += 1
            is_open, deltas = True, 0
            kind = body["content_block"]["type"]
            assert body["content_block"].get("input", {}) == {}
        elif name == "content_block_delta":
            deltas += 1
            last = body["delta"]["type"]
            assert {"text": {"text_delta"}, "tool_use": {"input_json_delta"}}.get(
                kind, {"thinking_delta", "signature_delta"}
            ) >= {last}
        if name == "content_block_stop":
            assert is_open
            assert deltas, "every block has at least one delta"
            assert kind != "thinking" or last == "signature_delta"
            is_open = False
        if name.startswith("content_block"):
            assert body["index"] == opened
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    assert names.count("message_start") == names.count("message_delta") == 1


@settings(max_examples=40)
@given(answers(choices_max=1), st.booleans())
def test_the_whole_message_says_what_the_stream_says(answer, thinking):
    _, events = answer
    collector = MessageCollector(message_id="msg_1", model="m", thinking=thinking)
    for event in events:
        collector.add(event)
    message = Message.model_validate(collector.body())
    streamed = rebuilt(events, thinking=thinking)
    assert blocks(message) == blocks(streamed)
    assert (message.stop_reason, message.stop_sequence) == (streamed.stop_reason, streamed.stop_sequence)
    assert message.usage.output_tokens == streamed.usage.output_tokens
    assert all(block.text for block in message.content if block.type == "text")


@settings(max_examples=40)
@given(answers(choices_max=1), st.data())
def test_after_an_error_no_stream_ends_as_if_all_were_well(answer, data):
    _, events = answer
    at = data.draw(st.integers(0, len(events) - 1))
    failed = AnswerFailed(ApiError(ErrorKind.ENGINE_FAILED, "broken"))
    sent = [name for name, _ in stream([*events[:at], failed, *events[at:]]) if name != "ping"]
    assume(sent)
    assert sent[-1] == "error"
    assert "message_stop" not in sent
