"""Whatever an answer is made of, the official client's accumulator rebuilds it from our stream."""

from __future__ import annotations

import itertools
import json

from hypothesis import given, settings
from hypothesis import strategies as st
from openai._models import construct_type
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from saiserve.api.chat_reply import ChatCollector, ChatHead, ChatStreamEncoder
from saiserve.api.completions import CompletionCollector, CompletionStreamEncoder
from saiserve.api.openai_common import FINISH_REASONS
from saiserve.chat.events import AnswerFailed
from saiserve.errors import ApiError, ErrorKind
from tests.property.api.events import answers, gathered, logprobs_in_order, server_sent


def chat_stream(choices, events, usage=True):
    encoder = ChatStreamEncoder(ChatHead("chatcmpl-1", 1, "m"), choices=choices, usage=usage)
    return [json.loads(data) if data != "[DONE]" else data for _, data in encode(encoder, events)]


def encode(encoder, events):
    return server_sent(b"".join(encoder.encode(event) + encoder.keepalive() for event in events))


def said_tokens(choice):
    """The tokens of a chat choice's content: their bytes, log-probabilities and alternatives."""
    entries = choice.logprobs.content if choice.logprobs is not None else None
    return [
        (bytes(e.bytes), e.logprob, [(bytes(other.bytes), other.logprob) for other in e.top_logprobs])
        for e in entries or []
    ]


def tokens_of(events, choice):
    """The same of the events."""
    entries = logprobs_in_order(events, choice)
    return [(e.piece, e.logprob, [(piece, logprob) for _, piece, logprob in e.top]) for e in entries]


@settings(max_examples=40)
@given(answers())
def test_the_chat_accumulator_rebuilds_every_choice(answer):
    choices, events = answer
    *chunks, done = chat_stream(choices, events)
    assert done == "[DONE]"
    state = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    final = state.current_completion_snapshot
    expected = gathered(choices, events)
    assert len(final.choices) == choices
    for rebuilt, wanted in zip(final.choices, expected.choices, strict=True):
        assert rebuilt.message.role == "assistant"
        assert (rebuilt.message.content or "") == wanted.text
        assert getattr(rebuilt.message, "reasoning_content", "") == wanted.reasoning
        calls = [(c.id, c.function.name, c.function.arguments, c.type) for c in rebuilt.message.tool_calls or []]
        assert calls == [(c.id, c.name, c.arguments or "{}", "function") for c in wanted.calls]
        assert rebuilt.finish_reason == FINISH_REASONS[wanted.finish]
    for index, rebuilt in enumerate(final.choices):
        assert said_tokens(rebuilt) == tokens_of(events, index)
        if tokens_of(events, index):
            assert b"".join(data for data, _, _ in said_tokens(rebuilt)).decode() == (rebuilt.message.content or "")
    assert final.usage.prompt_tokens == expected.usage.prompt_tokens
    assert final.usage.total_tokens == expected.usage.prompt_tokens + expected.usage.completion_tokens


@settings(max_examples=40)
@given(answers(), st.booleans())
def test_chunks_keep_the_shape_clients_trip_over(answer, usage):
    choices, events = answer
    *chunks, done = chat_stream(choices, events, usage)
    assert done == "[DONE]"
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert [chunk["choices"][0]["index"] for chunk in chunks[:choices]] == list(range(choices))
    bodies = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    for choice in range(choices):
        own = [body for body in bodies if body["index"] == choice]
        assert ["role" in body["delta"] for body in own] == [True] + [False] * (len(own) - 1)
        assert [body["finish_reason"] is not None for body in own] == [False] * (len(own) - 1) + [True]
        assert own[-1]["delta"] == {}
        tools = [call for body in own for call in body["delta"].get("tool_calls", [])]
        named = [call["index"] for call in tools if "id" in call]
        assert named == list(range(len(named))), "ids once, indexes contiguous from 0"
        assert all(call["type"] == "function" for call in tools if "id" in call)
        assert all("name" not in call["function"] for call in tools if "id" not in call)
    assert ["usage" in chunk for chunk in chunks] == [False] * (len(chunks) - usage) + [True] * usage


@settings(max_examples=40)
@given(answers())
def test_the_whole_chat_reply_says_what_the_stream_says(answer):
    choices, events = answer
    collector = ChatCollector(ChatHead("chatcmpl-1", 1, "m"), choices=choices)
    for event in events:
        collector.add(event)
    reply = ChatCompletion.model_validate(collector.body())
    expected = gathered(choices, events)
    for body, choice, wanted in zip(collector.body()["choices"], reply.choices, expected.choices, strict=True):
        assert {"content", "refusal", "role"} <= set(body["message"])
        assert "logprobs" in body
        assert (choice.message.content or "") == wanted.text
        assert [c.id for c in choice.message.tool_calls or []] == [c.id for c in wanted.calls]
        assert said_tokens(choice) == tokens_of(events, choice.index)


@settings(max_examples=40)
@given(answers(), st.data())
def test_after_an_error_no_stream_ends_as_if_all_were_well(answer, data):
    choices, events = answer
    cut = data.draw(st.integers(1, len(events) - 1))
    failed = AnswerFailed(ApiError(ErrorKind.ENGINE_FAILED, "broken"))
    chunks = chat_stream(choices, [*events[:cut], failed, *events[cut:]])
    assert chunks[-1]["error"]["message"] == "broken"
    assert "[DONE]" not in chunks


@settings(max_examples=40)
@given(answers(text_only=True))
def test_text_completions_add_up(answer):
    choices, events = answer
    encoder = CompletionStreamEncoder(completion_id="cmpl-1", created=1, model="m", choices=choices, usage=True)
    *chunks, (_, done) = encode(encoder, events)
    assert done == "[DONE]"
    parsed = [construct_type(type_=Completion, value=json.loads(chunk)) for _, chunk in chunks]
    collector = CompletionCollector(completion_id="cmpl-1", created=1, model="m", choices=choices)
    for event in events:
        collector.add(event)
    whole = Completion.model_validate(collector.body())
    for choice in range(choices):
        own = [c.choices[0] for c in parsed if c.choices and c.choices[0].index == choice]
        assert "".join(piece.text for piece in own) == whole.choices[choice].text
        assert [piece.finish_reason for piece in own if piece.finish_reason] == [whole.choices[choice].finish_reason]
        streamed = [piece.logprobs for piece in own if piece.logprobs is not None]
        object_of_all = whole.choices[choice].logprobs
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [value for logprobs in streamed for value in getattr(logprobs, name)]
            assert joined == (getattr(object_of_all, name) if object_of_all is not None else [])
        entries = logprobs_in_order(events, choice)
        if object_of_all is not None:
            assert object_of_all.token_logprobs == [entry.logprob for entry in entries]
            assert (
                object_of_all.text_offset == list(itertools.accumulate(map(len, object_of_all.tokens), initial=0))[:-1]
            )
        else:
            assert not entries
    assert parsed[-1].usage.completion_tokens == whole.usage.completion_tokens
