"""What the official SDKs and the coding agents trip over in a stream, row by row: no stream of ours has it.

Each row names a fault and what a client made of it; its check must hold for every answer in every chunking.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from saiserve.api.chat_reply import ChatHead, ChatStreamEncoder
from saiserve.api.messages_reply import MessageStreamEncoder
from saiserve.api.responses_reply import ResponseEncoder
from saiserve.chat.events import AnswerEvent, AnswerFailed, ChoiceFinished, StopKind, ToolCallStarted
from saiserve.errors import ApiError, ErrorKind
from tests.property.api.events import answers, server_sent

Sent = list[tuple[str, Any]]
"""Event names and data of one stream; data is decoded JSON, or the text `[DONE]`."""
Row = Callable[[Sent], bool]
ECHO = {"model": "m", "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}


def ended_in_calls(events: list[AnswerEvent]) -> list[AnswerEvent]:
    """Ends as the parser gives them: a stop string behind calls is an end in calls."""
    called = {event.choice for event in events if isinstance(event, ToolCallStarted)}
    return [
        ChoiceFinished(event.choice, StopKind.TOOL_CALLS)
        if isinstance(event, ChoiceFinished) and event.kind is StopKind.STOP_STRING and event.choice in called
        else event
        for event in events
    ]


def decoded(data: bytes) -> Sent:
    return [(name, json.loads(text) if text != "[DONE]" else text) for name, text in server_sent(data)]


def faults(rows: dict[str, Row], sent: Sent) -> list[str]:
    """The faults a stream has."""
    return [fault for fault, is_free in rows.items() if not is_free(sent)]


def chat(choices: int, events: list[AnswerEvent]) -> Sent:
    encoder = ChatStreamEncoder(ChatHead("chatcmpl-1", 1, "m"), choices=choices, usage=True)
    return decoded(b"".join(encoder.encode(event) for event in events))


def messages(events: list[AnswerEvent]) -> Sent:
    encoder = MessageStreamEncoder(message_id="msg_1", model="m", thinking=True)
    return decoded(b"".join(encoder.encode(event) for event in events))


def responses(events: list[AnswerEvent]) -> Sent:
    encoder = ResponseEncoder(response_id="resp_1", created=1, echo=ECHO)
    return decoded(b"".join(encoder.encode(event) for event in events))


# Chat Completions


def chunks(sent: Sent) -> list[dict[str, Any]]:
    return [body for _, body in sent if isinstance(body, dict)]


def parts(sent: Sent) -> list[dict[str, Any]]:
    return [choice for chunk in chunks(sent) for choice in chunk["choices"]]


def tool_deltas(sent: Sent) -> list[tuple[int, dict[str, Any]]]:
    return [(part["index"], call) for part in parts(sent) for call in part["delta"].get("tool_calls") or ()]


def begun(sent: Sent) -> list[tuple[int, dict[str, Any]]]:
    """The first delta of each call."""
    seen: set[tuple[int, int]] = set()
    first = []
    for choice, call in tool_deltas(sent):
        if (choice, call["index"]) not in seen:
            seen.add((choice, call["index"]))
            first.append((choice, call))
    return first


def once_per_choice(sent: Sent, has: Callable[[dict[str, Any]], bool]) -> bool:
    counts = Counter(part["index"] for part in parts(sent) if has(part))
    return set(counts.values()) == {1} and len(counts) == len({part["index"] for part in parts(sent)})


def indexes_run_from_zero(sent: Sent) -> bool:
    by_choice: dict[int, list[int]] = {}
    for choice, call in begun(sent):
        by_choice.setdefault(choice, []).append(call["index"])
    return all(places == list(range(len(places))) for places in by_choice.values())


def choices_open_in_order(sent: Sent) -> bool:
    opened = list(dict.fromkeys(part["index"] for part in parts(sent)))
    return opened == sorted(opened) == list(range(len(opened)))


def finish_tells_calls(sent: Sent) -> bool:
    called = {choice for choice, _ in tool_deltas(sent)}
    ends = {part["index"]: part["finish_reason"] for part in parts(sent) if part["finish_reason"]}
    return all(ends[choice] in {"tool_calls", "length"} for choice in called)


CHAT_ROWS: dict[str, Row] = {
    "object missing: assertion error": lambda s: all(c["object"] == "chat.completion.chunk" for c in chunks(s)),
    "role in each chunk: assistantassistant": lambda s: once_per_choice(s, lambda part: "role" in part["delta"]),
    "call id in later deltas: concatenated": lambda s: sum("id" in c for _, c in tool_deltas(s)) == len(begun(s)),
    "call name in later deltas: concatenated": lambda s: (
        sum("name" in c["function"] for _, c in tool_deltas(s)) == len(begun(s))
    ),
    "call delta without index: type error": lambda s: all("index" in c for _, c in tool_deltas(s)),
    "call indexes not from 0: index error": indexes_run_from_zero,
    "two calls at one index: merged": lambda s: len({c["id"] for _, c in tool_deltas(s) if "id" in c}) == len(begun(s)),
    "call without type: type None": lambda s: all(c["type"] == "function" for _, c in begun(s)),
    "call without id: refused": lambda s: all(isinstance(c["id"], str) and c["id"] for _, c in begun(s)),
    "call without arguments: nothing to parse": lambda s: all(
        any(c["function"].get("arguments") for at, c in tool_deltas(s) if (at, c["index"]) == (choice, call["index"]))
        for choice, call in begun(s)
    ),
    "a chunk after usage: usage lost": lambda s: (
        "usage" in chunks(s)[-1] and not any("usage" in c for c in chunks(s)[:-1])
    ),
    "usage chunk with choices": lambda s: chunks(s)[-1]["choices"] == [],
    "first chunk of a later choice: index error": choices_open_in_order,
    "truthy error in a good stream: API error": lambda s: not any(c.get("error") for c in chunks(s)),
    "no [DONE]": lambda s: s[-1][1] == "[DONE]" and sum(body == "[DONE]" for _, body in s) == 1,
    "no finish_reason: asked again for ever": lambda s: once_per_choice(s, lambda part: bool(part["finish_reason"])),
    "finish_reason stop beside calls": finish_tells_calls,
    "first chunk without role and null content": lambda s: (
        parts(s)[0]["delta"] == {"role": "assistant", "content": None}
    ),
    "content beside finish_reason": lambda s: all(part["delta"] == {} for part in parts(s) if part["finish_reason"]),
    "empty content deltas": lambda s: not any(part["delta"].get("content") == "" for part in parts(s)),
    "ids that change": lambda s: len({c["id"] for c in chunks(s)}) == 1,
    "an empty list of calls read as a call": lambda s: not any(p["delta"].get("tool_calls") == [] for p in parts(s)),
}


@settings(max_examples=25)
@given(answer=answers())
def test_no_chat_stream_has_any_of_these_faults(answer):
    choices, events = answer
    assert not faults(CHAT_ROWS, chat(choices, ended_in_calls(events)))


# Messages


def named(sent: Sent, name: str) -> list[dict[str, Any]]:
    return [body for kind, body in sent if kind == name]


def blocks(sent: Sent) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each block with its deltas, as a client that believes the indexes sees them."""
    found: dict[int, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    for kind, body in sent:
        if kind == "content_block_start":
            found[body["index"]] = (body["content_block"], [])
        elif kind == "content_block_delta":
            found[body["index"]][1].append(body["delta"])
    return list(found.values())


def block_events_nest(sent: Sent) -> bool:
    is_open, expected = False, 0
    for kind, body in sent:
        if not kind.startswith("content_block"):
            continue
        if (kind == "content_block_start") is is_open or body["index"] != expected:
            return False
        is_open = kind != "content_block_stop"
        expected += kind == "content_block_stop"
    return not is_open


def stop_tells_calls(sent: Sent) -> bool:
    has_call = any(block["type"] == "tool_use" for block, _ in blocks(sent))
    reason = named(sent, "message_delta")[0]["delta"]["stop_reason"]
    return reason in ({"tool_use", "max_tokens"} if has_call else {"end_turn", "max_tokens", "stop_sequence"})


def inputs_are_json(sent: Sent) -> bool:
    inputs = [
        "".join(delta["partial_json"] for delta in deltas)
        for block, deltas in blocks(sent)
        if block["type"] == "tool_use"
    ]
    return all(isinstance(json.loads(text), dict) for text in inputs)


TOKEN_FIELDS = {"input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"}
MESSAGE_ROWS: dict[str, Row] = {
    "no event lines: nothing is heard": lambda s: all(name == body["type"] for name, body in s),
    "no message_start: assertion error": lambda s: s[0][0] == "message_start",
    "two message_start": lambda s: len(named(s, "message_start")) == 1,
    "delta without its block, indexes not 0, 1, 2: index error": block_events_nest,
    "usage absent in message_start": lambda s: named(s, "message_start")[0]["message"]["usage"].keys() >= TOKEN_FIELDS,
    "usage absent in message_delta": lambda s: named(s, "message_delta")[0]["usage"]["output_tokens"] >= 0,
    "no message_stop: taken for cut": lambda s: [name for name, _ in s[-2:]] == ["message_delta", "message_stop"],
    "thinking without signature": lambda s: all(
        deltas[-1]["type"] == "signature_delta" for block, deltas in blocks(s) if block["type"] == "thinking"
    ),
    "input in content_block_start alone: lost": lambda s: all(
        block["input"] == {} and deltas for block, deltas in blocks(s) if block["type"] == "tool_use"
    ),
    "partial_json never complete": inputs_are_json,
    "end_turn beside tool_use": stop_tells_calls,
    "empty text block": lambda s: all(
        "".join(delta["text"] for delta in deltas) for block, deltas in blocks(s) if block["type"] == "text"
    ),
    "thinking inside a text block": lambda s: all(
        len({delta["type"] for delta in deltas} - {"signature_delta"}) == 1 or not deltas for _, deltas in blocks(s)
    ),
    "call ids that repeat": lambda s: (
        max(Counter(block["id"] for block, _ in blocks(s) if block["type"] == "tool_use").values(), default=1) == 1
    ),
    "an error event in a good stream": lambda s: not named(s, "error"),
}


@settings(max_examples=25)
@given(answer=answers(choices_max=1))
def test_no_message_stream_has_any_of_these_faults(answer):
    assert not faults(MESSAGE_ROWS, messages(ended_in_calls(answer[1])))


# Responses


def final(sent: Sent) -> dict[str, Any]:
    return dict(sent[-1][1]["response"])


def added(sent: Sent) -> list[str]:
    return [body["item"]["id"] for body in named(sent, "response.output_item.added")]


def every_delta_has_its_item(sent: Sent) -> bool:
    seen: set[str] = set()
    for kind, body in sent:
        if kind == "response.output_item.added":
            seen.add(body["item"]["id"])
        elif "item_id" in body and body["item_id"] not in seen:
            return False
    return True


def every_text_has_its_part(sent: Sent) -> bool:
    opened: set[tuple[str, int]] = set()
    for kind, body in sent:
        if kind == "response.content_part.added":
            opened.add((body["item_id"], body["content_index"]))
        elif kind == "response.output_text.delta" and (body["item_id"], body["content_index"]) not in opened:
            return False
    return True


RESPONSE_ROWS: dict[str, Row] = {
    "event line is not the type": lambda s: all(name == body["type"] for name, body in s),
    "no response.created first: runtime error": lambda s: s[0][0] == "response.created",
    "delta before output_item.added: runtime error": every_delta_has_its_item,
    "no content_part.added: index error": every_text_has_its_part,
    "response id that changes: runtime error": lambda s: (
        {body["response"]["id"] for _, body in s if "response" in body} == {"resp_1"}
    ),
    "item id that changes between added and done: runtime error": lambda s: (
        added(s) == [body["item"]["id"] for body in named(s, "response.output_item.done")]
    ),
    "added item missing from the output: runtime error": lambda s: added(s) == [i["id"] for i in final(s)["output"]],
    "no output_item.done: a turn without message": lambda s: (
        [body["item"] for body in named(s, "response.output_item.done")] == final(s)["output"]
    ),
    "text without logprobs": lambda s: all("logprobs" in b for n, b in s if n.startswith("response.output_text")),
    "no or constant sequence_number": lambda s: [b["sequence_number"] for _, b in s] == list(range(len(s))),
    "no terminal event: stream closed, turn tried again": lambda s: (
        s[-1][0] in {"response.completed", "response.incomplete"}
        and sum(n in {"response.completed", "response.incomplete", "response.failed"} for n, _ in s) == 1
    ),
    "completed without id: parse error": lambda s: bool(final(s)["id"]),
    "usage without its details": lambda s: (
        "cached_tokens" in final(s)["usage"]["input_tokens_details"]
        and "cache_write_tokens" in final(s)["usage"]["input_tokens_details"]
        and "reasoning_tokens" in final(s)["usage"]["output_tokens_details"]
    ),
    "incomplete without its reason": lambda s: (
        (s[-1][0] == "response.incomplete") == (final(s)["incomplete_details"] is not None)
    ),
    "an error event, which Codex ignores": lambda s: not named(s, "error"),
    "a stray [DONE]": lambda s: all(isinstance(body, dict) for _, body in s),
    "no arguments.done before the call is done": lambda s: (
        len(named(s, "response.function_call_arguments.done"))
        == sum(item["type"] == "function_call" for item in final(s)["output"])
    ),
    "a call's arguments differ from its deltas": lambda s: all(
        "".join(b["delta"] for b in named(s, "response.function_call_arguments.delta") if b["item_id"] == item["id"])
        == item["arguments"]
        for item in final(s)["output"]
        if item["type"] == "function_call"
    ),
}


@settings(max_examples=25)
@given(answer=answers(choices_max=1))
def test_no_response_stream_has_any_of_these_faults(answer):
    assert not faults(RESPONSE_ROWS, responses(answer[1]))


# Faults in the middle, in the form that each client heeds


@settings(max_examples=25)
@given(answer=answers(choices_max=1), data=st.data())
def test_a_fault_in_the_middle_is_the_dialects_own_and_no_normal_end(answer, data):
    events = ended_in_calls(answer[1])
    at = data.draw(st.integers(1, len(events) - 1))
    overflow = ApiError(ErrorKind.CONTEXT_TOO_LONG, "grown too long", prompt_tokens=9, context_tokens=8)
    cut = [*events[:at], AnswerFailed(overflow), *events[at:]]
    said = chat(1, cut)
    assert said[-1][1]["error"]["code"] == "context_length_exceeded"
    assert not any(body == "[DONE]" for _, body in said)
    told = messages(cut)
    assert told[-1][0] == "error"
    assert told[-1][1]["error"]["message"].startswith("prompt is too long: 9 tokens > 8 maximum")
    assert not named(told, "message_stop")
    failed = responses(cut)
    assert failed[-1][0] == "response.failed"
    assert failed[-1][1]["response"]["error"]["code"] == "context_length_exceeded"
    assert not named(failed, "error")
