"""Faults that translators between the dialects are known for, each as what happens here instead."""

from __future__ import annotations

import json
from typing import Any

import pytest

from saiserve.api.context import Origin
from saiserve.api.gathered import GatheredAnswer
from saiserve.api.messages_request import decode_messages
from saiserve.chat.events import AnswerEvent, ChoiceFinished, StopKind, TextDelta
from saiserve.chat.request import (
    Dialect,
    GenerationRequest,
    ImagePart,
    Message,
    Role,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
)
from saiserve.engines.messages import Constraint, Sampling
from saiserve.engines.upstream.anthropic_decoder import MessageDecoder
from saiserve.engines.upstream.anthropic_request import messages_body
from saiserve.engines.upstream.faults import UpstreamFault
from saiserve.engines.upstream.names import ToolNames
from saiserve.engines.upstream.openai_decoder import ChatDecoder
from saiserve.engines.upstream.openai_request import chat_body
from saiserve.engines.upstream.sse import SseReader
from saiserve.engines.upstream.targets import Target, TargetDialect, TargetModel
from saiserve.errors import ApiError, ErrorKind
from tests.fakes.upstream import chat_stream, delta, message_stream, usage

MODEL = TargetModel("m", "m", context_tokens=8_000, output_tokens=4_000)
TARGET = Target("t", "http://127.0.0.1:1", TargetDialect.OPENAI, {"m": MODEL})
ORIGIN = Origin("r1", "k", 1, lambda: 1, ())
LOOK = Tool("look", "Looks.", {"type": "object", "properties": {}})


def read(data: bytes, decoder: ChatDecoder | MessageDecoder | None = None) -> GatheredAnswer:
    decoder = decoder or ChatDecoder("t", 0, ToolNames((LOOK,)), iter(f"made_{n}" for n in range(9)).__next__)
    reader = SseReader()
    answer = GatheredAnswer.empty(1)
    for event in [*reader.feed(data), *reader.finish()]:
        for said in decoder.feed(event):
            answer.add(said)
    for said in decoder.finish():
        answer.add(said)
    if decoder.usage is not None:
        answer.add(decoder.usage)
    return answer


def calls_of(*chunks: dict[str, Any]) -> list[tuple[str, str, str]]:
    (choice,) = read(chat_stream(*chunks, delta("tool_calls"))).choices
    return [(call.id, call.name, call.arguments) for call in choice.calls]


def call(
    call_id: str | None = None, name: str | None = None, arguments: str | None = None, **more: Any
) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**({"id": call_id} if call_id else {}), **more, "function": function}


def test_a_call_that_comes_whole_in_one_chunk_keeps_its_arguments() -> None:
    assert calls_of(delta(tool_calls=[call("a", "look", '{"x":1}', index=0)])) == [("a", "look", '{"x":1}')]


def test_an_empty_list_of_calls_beside_text_is_no_call() -> None:
    (choice,) = read(chat_stream(delta(content="Hi", tool_calls=[]), delta("stop"))).choices
    assert (choice.text, choice.calls, choice.finish) == ("Hi", [], StopKind.END)


@pytest.mark.parametrize("index", [{"index": 0}, {}], ids=["all zero", "none"])
def test_parallel_calls_without_numbers_of_their_own_stay_apart(index: dict[str, int]) -> None:
    chunks = [delta(tool_calls=[call(name, "look", f'{{"x":"{name}"}}', **index)]) for name in "ab"]
    assert calls_of(*chunks) == [("a", "look", '{"x":"a"}'), ("b", "look", '{"x":"b"}')]


def test_an_id_on_every_piece_makes_one_call() -> None:
    pieces = [delta(tool_calls=[call("a", "look", piece, index=0)]) for piece in ('{"x"', ":", "1}")]
    assert calls_of(*pieces) == [("a", "look", '{"x":1}')]


def test_pieces_of_two_calls_in_turns_become_one_after_the_other() -> None:
    pieces = [delta(tool_calls=[call(n, "look", "", index=i)]) for i, n in enumerate("ab")]
    pieces += [delta(tool_calls=[call(None, None, p, index=i)]) for p in ("{", "}") for i in (0, 1)]
    assert calls_of(*pieces) == [("a", "look", "{}"), ("b", "look", "{}")]


def test_a_call_without_an_id_gets_one_and_arguments_as_an_object_become_text() -> None:
    piece = {"index": 0, "function": {"name": "look", "arguments": {"x": 1}}}
    assert calls_of(delta(tool_calls=[piece])) == [("made_0", "look", '{"x":1}')]


def test_reasoning_before_calls_leaves_their_arguments_alone() -> None:
    chunks = [
        delta(reasoning_content="Hm."),
        delta(reasoning="Yes."),
        delta(tool_calls=[call("a", "look", "{}", index=0)]),
    ]
    (choice,) = read(chat_stream(*chunks, delta("tool_calls"))).choices
    assert choice.reasoning == "Hm.Yes."
    assert [c.arguments for c in choice.calls] == ["{}"]


def test_a_finish_of_stop_with_calls_ends_in_calls_and_a_second_finish_is_no_news() -> None:
    stream = chat_stream(
        delta(tool_calls=[call("a", "look", "{}", index=0)]), delta("stop"), delta("length"), usage(5, 2)
    )
    answer = read(stream)
    assert answer.choices[0].finish is StopKind.TOOL_CALLS
    assert answer.usage.prompt_tokens == 5


@pytest.mark.parametrize("place", ["last choice", "every chunk", "own chunk"])
def test_usage_is_found_wherever_it_stands(place: str) -> None:
    counts = usage(9, 2, 4)["usage"]
    first, last = delta(content="Hi"), delta("stop")
    if place == "own chunk":
        chunks = [first, last, usage(9, 2, 4)]
    else:
        chunks = [first | ({"usage": counts} if place == "every chunk" else {}), last | {"usage": counts}]
    found = read(chat_stream(*chunks)).usage
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (9, 4, 2)


def test_cached_tokens_are_counted_once_in_either_convention() -> None:
    start = {
        "type": "message_start",
        "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 1}},
    }
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
    found = read(message_stream(start, end), MessageDecoder("t", 0, ToolNames(()), str)).usage
    assert (found.prompt_tokens, found.cached_tokens) == (10, 4)


def test_a_calls_input_that_stands_in_its_start_alone_is_not_lost() -> None:
    events = [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": "a", "name": "look", "input": {"x": 1}},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
    ]
    (choice,) = read(message_stream(*events), MessageDecoder("t", 0, ToolNames(()), str)).choices
    assert [(c.id, c.arguments) for c in choice.calls] == [("a", '{"x":1}')]


def test_events_without_names_of_their_own_are_read_by_their_data() -> None:
    events = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "message_delta", "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"}},
    ]
    bare = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    (choice,) = read(bare, MessageDecoder("t", 0, ToolNames(()), str)).choices
    assert (choice.text, choice.stop_string) == ("Hi", "END")


@pytest.mark.parametrize(
    ("chunk", "kind"),
    [
        ({"error": {"message": "boom"}}, ErrorKind.UPSTREAM_FAILED),
        ({"error": "boom"}, ErrorKind.UPSTREAM_FAILED),
        ({"error": {"type": "rate_limit_error", "message": "slow"}}, ErrorKind.RATE_LIMITED),
        ({"error": {"code": "context_length_exceeded", "message": "long"}}, ErrorKind.CONTEXT_TOO_LONG),
    ],
)
def test_an_error_inside_a_stream_ends_it_as_an_error(chunk: dict[str, Any], kind: ErrorKind) -> None:
    with pytest.raises(UpstreamFault) as fault:
        read(chat_stream(delta(content="Hi"), chunk, done=False))
    assert fault.value.error.kind is kind


@pytest.mark.parametrize("tail", [b"", b"data: [DONE]\n\n", b"data: {\n\n"])
def test_a_stream_that_never_finishes_is_a_fault(tail: bytes) -> None:
    with pytest.raises(UpstreamFault):
        read(chat_stream(delta(content="Hi"), done=False) + tail)


def test_text_of_a_target_that_looks_like_a_call_stays_text() -> None:
    decoder = ChatDecoder("t", 0, ToolNames(()), str)
    (event,) = decoder.whole(
        json.dumps({"choices": [{"message": {"content": "<tool_call>{}"}, "finish_reason": "stop"}]}).encode()
    )[:1]
    assert isinstance(event, TextDelta)
    assert event.is_parsed


def test_refusals_for_content_map_onto_each_other() -> None:
    (said,) = [e for e in _finish("content_filter") if isinstance(e, ChoiceFinished)]
    assert said.kind is StopKind.REFUSAL
    decoder = MessageDecoder("t", 0, ToolNames(()), str)
    message = {"content": [{"type": "text", "text": "No."}], "stop_reason": "refusal"}
    assert decoder.whole(json.dumps(message).encode())[-1] == ChoiceFinished(0, StopKind.REFUSAL)


def _finish(reason: str) -> list[AnswerEvent]:
    decoder = ChatDecoder("t", 0, ToolNames(()), str)
    return decoder.whole(json.dumps({"choices": [{"message": {"content": "No."}, "finish_reason": reason}]}).encode())


# Requests


def request_of(*messages: Message, **more: Any) -> GenerationRequest:
    values = {"id": "r", "dialect": Dialect.RESPONSES, "model": "m", "sampling": Sampling(seed=1)}
    return GenerationRequest(**{**values, "messages": messages, **more})


def user(text: str = "Hello") -> Message:
    return Message(Role.USER, (TextPart(text),))


def to_chat(*messages: Message, **more: Any) -> dict[str, Any]:
    return dict(json.loads(chat_body(request_of(*messages, **more), TARGET, MODEL)))


def to_messages(*messages: Message, **more: Any) -> dict[str, Any]:
    return dict(json.loads(messages_body(request_of(*messages, **more), MODEL)))


def system(text: str) -> Message:
    return Message(Role.SYSTEM, (TextPart(text),))


def test_system_messages_inside_a_conversation_keep_their_place() -> None:
    turns = (system("A"), user(), system("B"), user("More"))
    assert [m["role"] for m in to_chat(*turns)["messages"]] == ["system", "user", "system", "user"]
    body = to_messages(*turns)
    assert body["system"] == [{"type": "text", "text": "A"}]
    assert [block["text"] for block in body["messages"][0]["content"]] == ["Hello", "<system>\nB\n</system>", "More"]


CALLS = (ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}"))
RESULTS = tuple(Message(Role.TOOL, (TextPart(f"saw {c.id}"),), tool_call_id=c.id) for c in CALLS)


def test_all_results_of_a_turn_are_one_user_turn_before_its_text() -> None:
    turns = (user(), Message(Role.ASSISTANT, (), tool_calls=CALLS), *RESULTS, user("And now?"))
    body = to_messages(*turns, tools=(LOOK,))
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in body["messages"][2]["content"]] == ["tool_result", "tool_result", "text"]


def test_results_follow_their_calls_although_the_client_put_text_first() -> None:
    content = [{"type": "text", "text": "And now?"}, {"type": "tool_result", "tool_use_id": "a", "content": "saw a"}]
    use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": content},
    ]
    asked = decode_messages(json.dumps({"model": "m", "max_tokens": 9, "messages": turns}).encode(), ORIGIN)
    body = json.loads(chat_body(asked, TARGET, MODEL))
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "tool", "user"]
    assert body["messages"][2] == {"role": "tool", "tool_call_id": "a", "content": "saw a"}


def test_an_image_in_a_result_is_shown_as_an_image() -> None:
    image = ImagePart("image/png", b"png")
    result = Message(Role.TOOL, (image,), tool_call_id="a")
    turns = (user(), Message(Role.ASSISTANT, (), tool_calls=CALLS[:1]), result)
    chat = to_chat(*turns)["messages"]
    assert chat[2]["content"] == ""
    assert chat[3]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert to_messages(*turns)["messages"][2]["content"][0]["content"][0]["source"]["media_type"] == "image/png"


def test_empty_text_and_foreign_thinking_are_left_out_for_anthropic() -> None:
    said = Message(Role.ASSISTANT, (TextPart(""),), reasoning="Hm.", tool_calls=CALLS[:1])
    body = to_messages(user(), said, RESULTS[0])
    assert [block["type"] for block in body["messages"][1]["content"]] == ["tool_use"]
    assert "Hm." not in json.dumps(body)


def test_thinking_of_the_history_is_no_content_of_a_chat() -> None:
    said = Message(Role.ASSISTANT, (TextPart("Yes."),), reasoning="Hm.")
    assert "Hm." not in json.dumps(to_chat(user(), said, user()))


@pytest.mark.parametrize(
    ("choice", "chat", "messages"),
    [
        (ToolChoice(), None, None),
        (ToolChoice(ToolChoiceMode.NONE), "none", {"type": "none"}),
        (ToolChoice(ToolChoiceMode.REQUIRED), "required", {"type": "any"}),
        (ToolChoice(parallel=False), None, {"type": "auto", "disable_parallel_tool_use": True}),
        (
            ToolChoice(ToolChoiceMode.NAMED, "look"),
            {"type": "function", "function": {"name": "look"}},
            {"type": "tool", "name": "look"},
        ),
    ],
)
def test_the_choice_of_tools_is_carried_over_and_never_widened(choice: ToolChoice, chat: Any, messages: Any) -> None:
    body = to_chat(user(), tools=(LOOK,), tool_choice=choice)
    assert body.get("tool_choice") == chat
    assert body.get("parallel_tool_calls") == (None if choice.parallel else False)
    assert to_messages(user(), tools=(LOOK,), tool_choice=choice).get("tool_choice") == messages


def test_a_limit_larger_than_the_room_is_cut_to_it() -> None:
    assert to_chat(user(), max_tokens=32_000)["max_tokens"] == 4_000
    assert to_messages(user("x" * 24_000), max_tokens=32_000)["max_tokens"] < 2_100
    assert to_messages(user())["max_tokens"] == 4_000
    assert "max_tokens" not in to_chat(user())


def test_long_and_odd_names_of_tools_come_back_as_they_were() -> None:
    tools = (Tool("mcp.server/" + "x" * 80), Tool("ns__open", namespace="ns"))
    sent = [tool["function"]["name"] for tool in to_chat(user(), tools=tools)["tools"]]
    assert all(len(name) <= 64 and name.replace("_", "").replace("-", "").isalnum() for name in sent)
    names = ToolNames(tools)
    assert [names.given(name) for name in sent] == [(tools[0].name, ""), ("open", "ns")]


def test_what_cannot_be_enforced_is_refused() -> None:
    with pytest.raises(ApiError, match="JSON schema"):
        to_messages(user(), constraint=Constraint("json_object"))
    with pytest.raises(ApiError, match="JSON schema"):
        to_chat(user(), constraint=Constraint("lark", "start: x"))


def test_the_beginning_of_an_answer_does_not_end_in_white_space() -> None:
    body = to_messages(user(), Message(Role.ASSISTANT, (TextPart("Well, \n"),)))
    assert body["messages"][1]["content"][0]["text"] == "Well,"
