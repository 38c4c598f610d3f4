"""The official OpenAI client, unmodified, against a served application."""

from __future__ import annotations

import asyncio

import openai
import pytest

from saiserve.chat.events import (
    AnswerFailed,
    ChoiceFinished,
    ReasoningDelta,
    Started,
    StopKind,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from saiserve.engines.messages import TokenLogprob
from saiserve.errors import ApiError, ErrorKind
from tests.api.serving import KEY, Served, served_elsewhere
from tests.fakes.service import Pause, ScriptedService, saying

HELLO = [{"role": "user", "content": "hi"}]


def client(served: Served, **options) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0, **options)


def test_a_chat_completes_with_its_usage():
    with served_elsewhere() as served, client(served) as ai:
        reply = ai.chat.completions.create(model="smol", messages=HELLO)
        assert reply.choices[0].message.content == "Hello there."
        assert reply.choices[0].finish_reason == "stop"
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (7, 5, 12)
        assert reply.usage.prompt_tokens_details.cached_tokens == 3
        assert reply._request_id


def test_a_streamed_chat_adds_up_to_the_same_text_with_usage_last():
    with served_elsewhere() as served, client(served) as ai:
        stream = ai.chat.completions.create(
            model="smol", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello there."
        assert len({chunk.id for chunk in chunks}) == 1
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == 5
        assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]


def test_the_stream_helper_rebuilds_two_choices():
    with (
        served_elsewhere() as served,
        client(served) as ai,
        ai.chat.completions.stream(model="smol", messages=HELLO, n=2) as stream,
    ):
        final = stream.get_final_completion()
        assert [choice.message.content for choice in final.choices] == ["Hello there."] * 2
        assert [choice.message.role for choice in final.choices] == ["assistant"] * 2


def test_tool_calls_and_reasoning_reach_the_stream_helper():
    script = [
        Started(5, 0),
        ReasoningDelta(0, "think"),
        ToolCallStarted(0, 0, "call_a", "first"),
        ToolCallDelta(0, 0, '{"x":'),
        ToolCallDelta(0, 0, "1}"),
        ToolCallStarted(0, 1, "call_b", "second"),
        ToolCallDelta(0, 1, "{}"),
        ChoiceFinished(0, StopKind.TOOL_CALLS),
        Usage(5, 0, 9, 2),
    ]
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("first", "second")]
    service = ScriptedService(lambda request: script)
    with served_elsewhere(service) as served, client(served) as ai:
        whole = ai.chat.completions.create(model="smol", messages=HELLO, tools=tools)
        with ai.chat.completions.stream(model="smol", messages=HELLO, tools=tools) as stream:
            streamed = stream.get_final_completion()
        for reply in (whole, streamed):
            calls = reply.choices[0].message.tool_calls
            assert [(c.id, c.function.name, c.function.arguments) for c in calls] == [
                ("call_a", "first", '{"x":1}'),
                ("call_b", "second", "{}"),
            ]
            assert reply.choices[0].finish_reason == "tool_calls"
            assert reply.choices[0].message.reasoning_content == "think"
        assert whole.choices[0].message.content is None


def test_logprobs_come_with_bytes_and_alternatives():
    logprob = TokenLogprob(5, "é".encode()[:1], -0.5, ((5, b"\xc3", -0.5), (6, b"b", float("-inf"))))
    script = [Started(1, 0), TextDelta(0, "é", (logprob,)), ChoiceFinished(0, StopKind.LENGTH), Usage(1, 0, 1)]
    service = ScriptedService(lambda request: script)
    with served_elsewhere(service) as served, client(served) as ai:
        reply = ai.chat.completions.create(model="smol", messages=HELLO, logprobs=True, top_logprobs=2)
        entry = reply.choices[0].logprobs.content[0]
        assert entry.bytes == [0xC3]
        assert entry.top_logprobs[1].logprob == -9999.0
        assert reply.choices[0].finish_reason == "length"
        assert service.requests[0].sampling.logprobs == 2


def test_a_completion_whole_and_streamed():
    with served_elsewhere() as served, client(served) as ai:
        reply = ai.completions.create(model="smol", prompt="Once", max_tokens=5)
        assert reply.choices[0].text == "Hello there."
        assert served.service.requests[0].prompt_text == "Once"
        stream = ai.completions.create(model="smol", prompt=[1, 2, 3], stream=True)
        assert "".join([chunk.choices[0].text for chunk in stream]) == "Hello there."
        assert served.service.requests[1].prompt_tokens == (1, 2, 3)
        assert served.service.requests[1].max_tokens == 16


def test_models_are_listed_and_found_by_slashed_id_and_alias():
    with served_elsewhere() as served, client(served) as ai:
        listed = [model.id for model in ai.models.list()]
        assert listed == ["smol", "org/name"]
        assert (ai.models.retrieve("org/name")).id == "org/name"
        assert (ai.models.retrieve("smollm2-135m")).id == "smol"
        with pytest.raises(openai.NotFoundError) as caught:
            ai.models.retrieve("../../etc/passwd")
        assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_404_with_its_code(stream):
    with served_elsewhere() as served, client(served) as ai:
        with pytest.raises(openai.NotFoundError) as caught:
            ai.chat.completions.create(model="none", messages=HELLO, stream=stream)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("stream", [False, True])
def test_overflow_before_the_first_event_is_400_with_its_code(stream):
    error = ApiError(ErrorKind.CONTEXT_TOO_LONG, "too long: 9000 tokens, 8192 fit")
    service = ScriptedService(lambda request: [AnswerFailed(error)])
    with served_elsewhere(service) as served, client(served) as ai:
        with pytest.raises(openai.BadRequestError) as caught:
            ai.chat.completions.create(model="smol", messages=HELLO, stream=stream)
        assert caught.value.code == "context_length_exceeded"


def test_a_fault_after_the_first_event_is_an_error_event_and_no_normal_end():
    failed = AnswerFailed(ApiError(ErrorKind.ENGINE_FAILED, "the engine died"))
    service = ScriptedService(lambda request: [Started(1, 0), TextDelta(0, "ab"), failed])
    with served_elsewhere(service) as served, client(served) as ai:
        stream = ai.chat.completions.create(model="smol", messages=HELLO, stream=True)
        seen = []
        with pytest.raises(openai.APIError, match="the engine died"):
            seen.extend(stream)
        assert all(chunk.choices[0].finish_reason is None for chunk in seen)


def test_a_wrong_key_is_an_authentication_error():
    with served_elsewhere() as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as ai:
        with pytest.raises(openai.AuthenticationError):
            ai.models.list()


def test_a_stop_string_and_a_cut_have_their_finish_reasons():
    service = ScriptedService(saying("ab", kind=StopKind.STOP_STRING, stop_string="c"))
    with served_elsewhere(service) as served, client(served) as ai:
        reply = ai.chat.completions.create(model="smol", messages=HELLO, stop=["c"])
        assert reply.choices[0].finish_reason == "stop"
        assert service.requests[0].stop == ("c",)


def test_a_stream_that_is_silent_carries_comments_the_client_skips():
    script = [Started(1, 0), Pause(0.3), TextDelta(0, "ok"), ChoiceFinished(0, StopKind.END), Usage(1, 0, 1)]
    service = ScriptedService(lambda request: script, entry_s=0.3)
    with served_elsewhere(service, keepalive_s=0.1) as served, client(served) as ai:
        asked = {"model": "smol", "messages": HELLO, "stream": True}
        stream = ai.chat.completions.create(**asked)
        assert "".join([c.choices[0].delta.content or "" for c in stream if c.choices]) == "ok"
        with ai.chat.completions.with_streaming_response.create(**asked) as reply:
            lines = reply.read().decode().splitlines()
    comments = [at for at, line in enumerate(lines) if line.startswith(":")]
    first, text = (next(at for at, line in enumerate(lines) if mark in line) for mark in ('"role"', '"ok"'))
    assert any(at < first for at in comments), "while nothing was accepted"
    assert any(first < at < text for at in comments), "while the text was waited for"


def test_the_asynchronous_client_streams_as_well():
    async def run(served: Served) -> str:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as ai:
            stream = await ai.chat.completions.create(model="smol", messages=HELLO, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    with served_elsewhere() as served:
        assert asyncio.run(run(served)) == "Hello there."


def test_free_form_tools_and_the_older_functions_come_back_in_their_own_form():
    raw = '<tool_call>{"name": "patch", "arguments": {"input": "*** Begin"}}</tool_call>'
    custom = [{"type": "custom", "custom": {"name": "patch", "description": "edit"}}]
    functions = [{"name": "patch", "parameters": {"type": "object"}}]
    with served_elsewhere(ScriptedService(saying(raw))) as served, client(served) as ai:
        ask = {"model": "smol", "messages": HELLO}
        call = ai.chat.completions.create(**ask, tools=custom).choices[0].message.tool_calls[0]
        assert (call.type, call.custom.name, call.custom.input) == ("custom", "patch", "*** Begin")
        old = ai.chat.completions.create(**ask, functions=functions).choices[0]
        assert (old.finish_reason, old.message.function_call.name) == ("function_call", "patch")
        assert old.message.function_call.arguments == '{"input": "*** Begin"}'
        chunks = list(ai.chat.completions.create(**ask, functions=functions, stream=True))
        calls = [c.choices[0].delta.function_call for c in chunks if c.choices and c.choices[0].delta.function_call]
        assert [call.name for call in calls if call.name] == ["patch"]
        assert "".join(call.arguments for call in calls) == '{"input": "*** Begin"}'
        assert chunks[-1].choices[0].finish_reason == "function_call"
        streamed = [c.choices[0].delta.tool_calls for c in ai.chat.completions.create(**ask, tools=custom, stream=True)]
        first = next(calls for calls in streamed if calls)[0]
        assert (first.type, first.custom) == ("custom", {"name": "patch", "input": "*** Begin"})
