"""Between dialects and back: requests keep their meaning, streams rebuild the same answer in any chunking."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from saiserve.api.chat_reply import ChatCollector, ChatHead, ChatStreamEncoder
from saiserve.api.chat_request import decode_chat
from saiserve.api.context import Origin
from saiserve.api.gathered import GatheredAnswer, GatheredChoice, finish_kind
from saiserve.api.messages_reply import MessageCollector, MessageStreamEncoder
from saiserve.api.messages_request import decode_messages
from saiserve.api.responses_request import decode_response
from saiserve.chat.events import AnswerEvent, StopKind, ToolCallDelta
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
from saiserve.engines.upstream.openai_request import FAILED_TOOL, chat_body
from saiserve.engines.upstream.sse import EventTooLarge, SseReader
from saiserve.engines.upstream.targets import Target, TargetDialect, TargetModel
from tests.property.api.events import answers, gathered

HEAD = ChatHead("c", 1, "m")
ORIGIN = Origin("r1", "k", 1, lambda: 1, ())
MODEL = TargetModel("m", "m", capabilities=frozenset({"chat", "tools", "reasoning"}))
TARGET = Target("t", "http://127.0.0.1:1", TargetDialect.OPENAI, {"m": MODEL})

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)
IDS = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)
NAMES = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_-]{0,20}", fullmatch=True)
VALUES = st.one_of(st.integers(-9, 9), TEXT, st.none(), st.lists(st.booleans(), max_size=2))
IMAGE = ImagePart("image/png", b"\x89PNG")


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """Well-formed ones: calls are answered, in order, before anything else is said."""
    messages = [Message(Role.SYSTEM, (TextPart(draw(TEXT)),))] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(1, 4))):
        parts = [TextPart(draw(TEXT)), *([IMAGE] if draw(st.booleans()) else [])]
        messages.append(Message(Role.USER, tuple(parts)))
        calls = tuple(
            ToolCall(
                f"{draw(IDS)}_{turn}_{number}",
                draw(NAMES),
                json.dumps(draw(st.dictionaries(NAMES, VALUES, max_size=2))),
            )
            for number in range(draw(st.integers(0, 3)))
        )
        said = (TextPart(draw(TEXT) + "."),) if draw(st.booleans()) or not calls else ()
        reasoning = draw(TEXT) if draw(st.booleans()) else ""
        messages.append(Message(Role.ASSISTANT, said, reasoning=reasoning, tool_calls=calls))
        messages += [
            Message(Role.TOOL, (TextPart(draw(TEXT)),), tool_call_id=call.id, is_error=draw(st.booleans()))
            for call in calls
        ]
        if draw(st.booleans()):
            messages.append(Message(Role.SYSTEM, (TextPart(draw(TEXT)),)))
    messages.append(Message(Role.USER, (TextPart(draw(TEXT)),)))
    return tuple(messages)


@st.composite
def requests(draw: st.DrawFn) -> GenerationRequest:
    names = draw(st.lists(NAMES, max_size=3, unique=True))
    tools = tuple(
        Tool(name, draw(TEXT), {"type": "object", "properties": {"a": {"type": "string"}}}, strict=draw(st.booleans()))
        for name in names
    )
    modes = [ToolChoiceMode.AUTO, ToolChoiceMode.NONE, ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED]
    mode = draw(st.sampled_from(modes)) if tools else ToolChoiceMode.AUTO
    parallel = draw(st.booleans()) if tools and mode is not ToolChoiceMode.NONE else True
    schema = Constraint("json_schema", '{"type":"object"}')
    return GenerationRequest(
        id="r1",
        dialect=Dialect.RESPONSES,
        model="m",
        sampling=Sampling(seed=1),
        messages=draw(conversations()),
        tools=tools,
        tool_choice=ToolChoice(mode, names[0] if mode is ToolChoiceMode.NAMED else "", parallel),
        max_tokens=draw(st.integers(1, 10_000)),
        stop=tuple(draw(st.lists(TEXT, max_size=2, unique=True))),
        stream=draw(st.booleans()),
        constraint=draw(st.sampled_from([None, schema])),
    )


def meaning(request: GenerationRequest) -> dict[str, Any]:
    names = ("tools", "tool_choice", "max_tokens", "stop", "stream", "constraint")
    turns: list[tuple[Any, ...]] = []
    for message in request.messages or ():
        calls = [(c.id, c.name, json.loads(c.arguments)) for c in message.tool_calls]
        parts = [part for part in message.parts if isinstance(part, ImagePart) or part.text]
        if turns and turns[-1][0] is message.role and message.role is not Role.TOOL:
            last = turns.pop()
            parts, calls = last[1] + parts, last[2] + calls
        turns.append((message.role, joined(parts), calls, message.tool_call_id, message.is_error))
    reasoning = [message.reasoning for message in request.messages or () if message.reasoning]
    return {"turns": turns, "reasoning": reasoning} | {name: getattr(request, name) for name in names}


def joined(parts: list[Any]) -> list[Any]:
    """Texts side by side as one."""
    result: list[Any] = []
    for part in parts:
        if result and isinstance(part, TextPart) and isinstance(result[-1], TextPart):
            result[-1] = TextPart(result[-1].text + part.text)
        else:
            result.append(part)
    return result


def for_messages(request: GenerationRequest) -> GenerationRequest:
    """With what Messages can say: later system messages in marks in their place, reasoning of other servers left out."""
    told: list[Message] = []
    for message in request.messages or ():
        is_head = all(before.role is Role.SYSTEM for before in told)
        if message.role is Role.SYSTEM and not is_head:
            told.append(Message(Role.USER, (TextPart(f"<system>\n{message.text}\n</system>"),)))
        else:
            told.append(replace(message, reasoning=""))
    return replace(request, messages=tuple(told))


def in_words(request: GenerationRequest) -> GenerationRequest:
    """With the failure of tools told in their text, as Chat Completions must."""
    messages = tuple(
        replace(m, parts=(TextPart(FAILED_TOOL + m.text),), is_error=False) if m.is_error else m
        for m in request.messages or ()
    )
    return replace(request, messages=messages)


@settings(max_examples=150)
@given(requests())
def test_a_request_through_chat_completions_keeps_its_meaning(request: GenerationRequest) -> None:
    back = decode_chat(chat_body(request, TARGET, MODEL), ORIGIN).request
    assert meaning(back) == meaning(in_words(request))


@settings(max_examples=150)
@given(requests())
def test_a_request_through_messages_keeps_its_meaning(request: GenerationRequest) -> None:
    back = decode_messages(messages_body(request, MODEL), ORIGIN)
    assert meaning(back) == meaning(for_messages(request))


SET_BY_CLIENT = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.25, 1.0, 1.5]),
        "top_p": st.sampled_from([0.1, 1.0]),
        "stop": st.lists(st.sampled_from(["END", "###"]), min_size=1, max_size=2, unique=True),
        "seed": st.integers(0, 2**31),
        "presence_penalty": st.sampled_from([-1.0, 0.5]),
        "reasoning_effort": st.sampled_from(["low", "high"]),
    },
)


@given(SET_BY_CLIENT, st.booleans())
def test_what_a_client_sets_itself_goes_with_its_request_and_nothing_else(fields: dict[str, Any], stream: bool) -> None:
    """From each dialect to each: values where both have the word, no defaults of this node."""
    base = {"model": "m", "stream": stream}
    hi = [{"role": "user", "content": "hi"}]
    effort = fields.get("reasoning_effort")
    shared = {name: fields[name] for name in ("temperature", "top_p") if name in fields}
    chat = decode_chat(json.dumps({**base, "messages": hi, **fields}).encode(), ORIGIN).request
    responses = decode_response(
        json.dumps({**base, "input": "hi", **shared, **({"reasoning": {"effort": effort}} if effort else {})}).encode(),
        ORIGIN,
    ).request
    low = {name: min(value, 1.0) for name, value in shared.items()}
    stops = {"stop_sequences": fields["stop"]} if "stop" in fields else {}
    claude = decode_messages(
        json.dumps({**base, "messages": hi, "max_tokens": 5, "top_k": 7, **low, **stops}).encode(), ORIGIN
    )
    sent = {
        (client, target): json.loads(body)
        for client, request in (("chat", chat), ("responses", responses), ("messages", claude))
        for target, body in (
            ("openai", chat_body(request, TARGET, MODEL)),
            ("anthropic", messages_body(request, MODEL)),
        )
    }
    names = ("temperature", "top_p", "stop", "stop_sequences", "seed", "presence_penalty", "reasoning_effort", "top_k")
    told = {way: {name: body[name] for name in names if name in body} for way, body in sent.items()}
    assert all(body["stream"] is stream for body in sent.values())
    assert told["chat", "openai"] == fields
    assert told["chat", "anthropic"] == low | stops
    assert told["responses", "openai"] == shared | ({"reasoning_effort": effort} if effort else {})
    assert told["responses", "anthropic"] == low
    assert told["messages", "openai"] == low | ({"stop": fields["stop"]} if stops else {})
    assert told["messages", "anthropic"] == low | stops | {"top_k": 7}


@settings(max_examples=100)
@given(requests())
def test_a_request_through_both_dialects_keeps_its_meaning(request: GenerationRequest) -> None:
    once = replace(decode_messages(messages_body(request, MODEL), ORIGIN), raw=b"")
    twice = replace(decode_chat(chat_body(once, TARGET, MODEL), ORIGIN).request, raw=b"")
    assert meaning(twice) == meaning(in_words(for_messages(request)))


def choice_of(events: list[AnswerEvent]) -> GatheredChoice:
    return gathered(1, events).choices[0]


def told(choice: GatheredChoice) -> tuple[Any, ...]:
    kind = StopKind.END if choice.finish is StopKind.STOP_STRING else choice.finish
    kind = finish_kind(kind, called=bool(choice.calls))
    calls = [(call.id, call.name, call.arguments or "{}") for call in choice.calls]
    return choice.text, choice.reasoning, calls, kind


def read(decoder: ChatDecoder | MessageDecoder, data: bytes, cuts: list[int]) -> list[AnswerEvent]:
    reader, events = SseReader(), []
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    sse = [event for start, end in itertools.pairwise(places) for event in reader.feed(data[start:end])]
    sse += reader.finish()
    for event in sse:
        events += decoder.feed(event)
    assert b"".join(event.raw for event in sse) == data
    return [*events, *decoder.finish()]


CUTS = st.lists(st.integers(0, 100_000), max_size=40)
LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@settings(max_examples=100)
@given(answers(choices_max=1), CUTS, LINE_ENDS)
def test_a_chat_stream_is_rebuilt_in_any_chunking(answer: Any, cuts: list[int], line_end: bytes) -> None:
    _, events = answer
    encoder = ChatStreamEncoder(HEAD, choices=1, usage=True)
    data = b"".join(encoder.encode(event) + encoder.keepalive() for event in events).replace(b"\n", line_end)
    decoder = ChatDecoder("t", 0, ToolNames(()), lambda: "call_x")
    rebuilt = choice_of(read(decoder, data, cuts))
    assert told(rebuilt) == told(choice_of(events))
    assert decoder.is_done
    usage, wanted = decoder.usage, gathered(1, events).usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (
        (wanted.prompt_tokens, wanted.cached_tokens, wanted.completion_tokens)
    )


@settings(max_examples=100)
@given(answers(choices_max=1), CUTS, LINE_ENDS)
def test_a_messages_stream_is_rebuilt_in_any_chunking(answer: Any, cuts: list[int], line_end: bytes) -> None:
    _, events = answer
    encoder = MessageStreamEncoder(message_id="m", model="m", thinking=True)
    data = b"".join(encoder.encode(event) + encoder.keepalive() for event in events).replace(b"\n", line_end)
    decoder = MessageDecoder("t", 0, ToolNames(()), lambda: "call_x")
    rebuilt = choice_of(read(decoder, data, cuts))
    assert told(rebuilt) == told(choice_of(events))
    assert rebuilt.stop_string == choice_of(events).stop_string
    assert decoder.usage.completion_tokens == gathered(1, events).usage.completion_tokens


def with_whole_arguments(events: list[AnswerEvent]) -> list[AnswerEvent]:
    return [event for event in events if not isinstance(event, ToolCallDelta)]


@settings(max_examples=60)
@given(answers(choices_max=1))
def test_whole_answers_are_rebuilt(answer: Any) -> None:
    events = with_whole_arguments(answer[1])
    chat = ChatCollector(HEAD, choices=1)
    message = MessageCollector(message_id="m", model="m", thinking=True)
    for event in events:
        chat.add(event)
        message.add(event)
    from_chat = ChatDecoder("t", 0, ToolNames(()), lambda: "x").whole(msgspec.json.encode(chat.body()))
    from_message = MessageDecoder("t", 0, ToolNames(()), lambda: "x").whole(msgspec.json.encode(message.body()))
    assert told(choice_of(from_chat)) == told(choice_of(events))
    assert told(choice_of(from_message)) == told(choice_of(events))


JSONISH = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "index",
                    "delta",
                    "choices",
                    "message",
                    "content",
                    "tool_calls",
                    "function",
                    "arguments",
                    "id",
                    "name",
                    "usage",
                    "finish_reason",
                    "content_block",
                    "text",
                    "input",
                    "error",
                    "stop_reason",
                    "logprobs",
                ]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)
KINDS = st.sampled_from(
    ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"]
)


@settings(max_examples=200)
@given(st.lists(st.tuples(JSONISH, st.one_of(st.none(), KINDS)), max_size=6))
def test_decoders_are_total_on_any_json(values: list[tuple[Any, str | None]]) -> None:
    for decoder in (
        ChatDecoder("t", 0, ToolNames(()), lambda: "x"),
        MessageDecoder("t", 0, ToolNames(()), lambda: "x"),
    ):
        answer = GatheredAnswer.empty(1)
        try:
            for value, kind in values:
                body = {**value, "type": kind} if kind and isinstance(value, dict) else value
                for event in SseReader().feed(b"data: " + msgspec.json.encode(body) + b"\n\n"):
                    for said in decoder.feed(event):
                        answer.add(said)
            for said in decoder.finish():
                answer.add(said)
        except UpstreamFault as fault:
            assert fault.error.message  # noqa: PT017  # either an answer or a fault with words


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=30), max_size=20))
def test_the_reader_takes_any_bytes_and_gives_them_all_back(chunks: list[bytes]) -> None:
    reader = SseReader()
    events = [event for chunk in chunks for event in reader.feed(chunk)] + reader.finish()
    assert b"".join(event.raw for event in events) == b"".join(chunks)


def test_an_endless_event_is_given_up() -> None:
    reader = SseReader(limit=1000)
    try:
        for _ in range(100):
            reader.feed(b"data: " + b"x" * 20 + b"\n")
    except EventTooLarge:
        return
    raise AssertionError("an event without an end was kept")
