"""The official Anthropic client, unmodified, against a served application."""

from __future__ import annotations

import asyncio
import json

import anthropic
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
from saiserve.errors import ApiError, ErrorKind
from tests.api.serving import KEY, Served, served_elsewhere
from tests.fakes.service import CARD, Pause, ScriptedService, saying

HELLO = [{"role": "user", "content": "hi"}]
ASK = {"model": "smol", "max_tokens": 50, "messages": HELLO}
TOOL = {"name": "run", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}


def client(served: Served, **options) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=served.url, api_key=KEY, max_retries=0, **options)


def test_a_message_completes_and_its_input_leaves_out_the_cached():
    with served_elsewhere() as served, client(served) as ai:
        reply = ai.messages.create(**ASK)
        assert reply.content[0].text == "Hello there."
        assert reply.stop_reason == "end_turn"
        assert (reply.usage.input_tokens, reply.usage.cache_read_input_tokens, reply.usage.output_tokens) == (4, 3, 5)
        assert reply._request_id


def test_a_stream_rebuilds_text_thinking_and_tool_use():
    script = [
        Started(10, 2),
        ReasoningDelta(0, "hm"),
        TextDelta(0, "Let me "),
        TextDelta(0, "see."),
        ToolCallStarted(0, 0, "call_a", "run"),
        ToolCallDelta(0, 0, '{"command": "ls"}'),
        ToolCallStarted(0, 1, "call_b", "run"),
        ChoiceFinished(0, StopKind.TOOL_CALLS),
        Usage(10, 2, 20),
    ]
    asked = {**ASK, "tools": [TOOL], "thinking": {"type": "adaptive"}}
    with served_elsewhere(ScriptedService(lambda request: script)) as served, client(served) as ai:
        with ai.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        whole = ai.messages.create(**asked)
        for reply in (streamed, whole):
            thinking, text, first, second = reply.content
            assert (thinking.type, thinking.thinking) == ("thinking", "hm")
            assert thinking.signature
            assert text.text == "Let me see."
            assert (first.id, first.name, first.input) == ("call_a", "run", {"command": "ls"})
            assert (second.id, second.input) == ("call_b", {})
            assert reply.stop_reason == "tool_use"
            assert (reply.usage.input_tokens, reply.usage.output_tokens) == (8, 20)


def test_the_prompt_is_counted_before_the_first_event():
    with served_elsewhere() as served, client(served) as ai, ai.messages.create(**ASK, stream=True) as stream:
        first = next(iter(stream))
        assert first.type == "message_start"
        assert (first.message.usage.input_tokens, first.message.usage.cache_read_input_tokens) == (4, 3)


def test_thinking_nobody_asked_for_is_left_out():
    script = [
        Started(1, 0),
        ReasoningDelta(0, "hm"),
        TextDelta(0, "a"),
        ChoiceFinished(0, StopKind.END),
        Usage(1, 0, 2),
    ]
    with served_elsewhere(ScriptedService(lambda request: script)) as served, client(served) as ai:
        assert [block.type for block in ai.messages.create(**ASK).content] == ["text"]
        with ai.messages.stream(**ASK) as stream:
            assert [block.type for block in stream.get_final_message().content] == ["text"]
        assert served.service.requests[0].template_options["enable_thinking"] is False


def test_a_stop_sequence_is_reported_with_its_text():
    service = ScriptedService(saying("ab", kind=StopKind.STOP_STRING, stop_string="END"))
    with served_elsewhere(service) as served, client(served) as ai:
        reply = ai.messages.create(**ASK, stop_sequences=["END"])
        assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "END")
        with ai.messages.stream(**ASK, stop_sequences=["END"]) as stream:
            final = stream.get_final_message()
        assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "END")


def test_a_call_in_raw_output_of_a_model_without_tools_in_its_template_becomes_tool_use():
    raw = 'Sure.\n<tool_call>\n{"name": "run", "arguments": {"command": "ls"}}\n</tool_call>'
    with served_elsewhere(ScriptedService(saying(raw))) as served, client(served) as ai:
        with ai.messages.stream(**ASK, tools=[TOOL]) as stream:
            reply = stream.get_final_message()
        assert [block.type for block in reply.content] == ["text", "tool_use"]
        assert reply.content[1].input == {"command": "ls"}
        assert reply.stop_reason == "tool_use"
        seen = served.service.requests[0]
        assert '"name": "run"' in seen.messages[0].text
        assert seen.tools == ()


def test_tokens_are_counted_with_tools_and_without_max_tokens():
    with served_elsewhere() as served, client(served) as ai:
        bare = ai.messages.count_tokens(model="smol", messages=HELLO).input_tokens
        assert ai.messages.count_tokens(model="smol", messages=HELLO, tools=[TOOL]).input_tokens > bare
        assert ai.messages.count_tokens(model="smol", messages=HELLO, system="be brief").input_tokens > bare


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "exception", "word"),
    [
        (ErrorKind.MODEL_NOT_FOUND, anthropic.NotFoundError, "not_found_error"),
        (ErrorKind.CONTEXT_TOO_LONG, anthropic.BadRequestError, "invalid_request_error"),
        (ErrorKind.BUSY, anthropic.InternalServerError, "overloaded_error"),
        (ErrorKind.RATE_LIMITED, anthropic.RateLimitError, "rate_limit_error"),
        (ErrorKind.ENGINE_FAILED, anthropic.InternalServerError, "api_error"),
    ],
)
def test_faults_before_the_first_event_have_their_status_and_type(stream, kind, exception, word):
    service = ScriptedService(lambda request: [ApiError(kind, "no", prompt_tokens=9000, context_tokens=8192)])
    with served_elsewhere(service) as served, client(served) as ai:
        with pytest.raises(exception) as caught:
            ai.messages.create(**ASK, stream=stream)
        body = caught.value.body
        assert body["type"] == "error"
        assert body["error"]["type"] == word
        assert body["request_id"] == caught.value.request_id
        if kind is ErrorKind.CONTEXT_TOO_LONG:
            assert body["error"]["message"] == "prompt is too long: 9000 tokens > 8192 maximum"


def test_a_fault_in_the_stream_is_an_error_event():
    failed = AnswerFailed(ApiError(ErrorKind.ENGINE_FAILED, "the engine died"))
    service = ScriptedService(lambda request: [Started(1, 0), TextDelta(0, "a"), failed])
    with served_elsewhere(service) as served, client(served) as ai, ai.messages.create(**ASK, stream=True) as stream:
        with pytest.raises(anthropic.APIStatusError) as caught:
            list(stream)
        assert caught.value.body["error"]["message"] == "the engine died"


def test_pings_fill_silences_and_the_client_skips_them():
    script = [Started(1, 0), Pause(0.3), TextDelta(0, "ok"), ChoiceFinished(0, StopKind.END), Usage(1, 0, 1)]
    service = ScriptedService(lambda request: script, entry_s=0.3)
    with served_elsewhere(service, keepalive_s=0.1) as served, client(served) as ai:
        with ai.messages.stream(**ASK) as stream:
            assert stream.get_final_text() == "ok"
        with ai.messages.with_streaming_response.create(**ASK, stream=True) as reply:
            silent, begun, rest = reply.read().partition(b"event: message_start\n")
    assert begun
    assert silent.count(b":\n\n") >= 1, "before the message there is only a comment"
    assert b"event: ping" not in silent
    before_text, _, _ = rest.partition(b"event: content_block_start\n")
    assert before_text.count(b'event: ping\ndata: {"type":"ping"}\n\n') >= 1


def test_a_wrong_key_is_an_authentication_error_in_anthropics_words():
    with served_elsewhere() as served, anthropic.Anthropic(base_url=served.url, api_key="x", max_retries=0) as ai:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            ai.messages.create(**ASK)
        assert caught.value.body["error"]["type"] == "authentication_error"
        assert caught.value.response.headers["www-authenticate"]


def test_models_are_listed_for_this_client_too():
    with served_elsewhere() as served, client(served) as ai:
        assert [(model.id, model.lifecycle) for model in ai.models.list(limit=1)] == [
            ("smol", "active"),
            ("org/name", "active"),
        ]
        assert ai.models.retrieve("smol").display_name == "SmolLM2"


def test_the_asynchronous_client_streams_as_well():
    async def run(served: Served) -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=served.url, auth_token=KEY, api_key=None, max_retries=0) as ai,
            ai.messages.stream(**ASK) as stream,
        ):
            return await stream.get_final_text()

    with served_elsewhere() as served:
        assert asyncio.run(run(served)) == "Hello there."


MEANINGS = [
    # a coding agent's turn: billing line dropped, system kept in place, results before the rest of their turn
    (
        {
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc;"},
                {"type": "text", "text": "You code.", "cache_control": {"type": "ephemeral"}},
            ],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "do it"}]},
                {"role": "system", "content": "remember"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "x"},
                        {"type": "text", "text": ""},
                        {"type": "tool_use", "id": "t1", "name": "run", "input": {"command": "ls", "x": None}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "and then?"},
                        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a b"}]},
                    ],
                },
            ],
        },
        [
            ("system", "You code."),
            ("user", "do it"),
            ("system", "remember"),
            ("assistant", ""),
            ("tool", "a b"),
            ("user", "and then?"),
        ],
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "no"},
                        {
                            "type": "tool_result",
                            "tool_use_id": "t2",
                            "content": [{"type": "tool_reference", "tool_name": "run"}],
                        },
                    ],
                }
            ]
        },
        [("tool", "no"), ("tool", "The tool run can now be called.")],
    ),
]


@pytest.mark.parametrize(("body", "expected"), MEANINGS)
def test_bodies_mean_what_the_client_means(body, expected):
    native = ScriptedService(cards=(CARD.__class__(id="smol", tool_format="hermes"),))
    with served_elsewhere(native) as served, client(served) as ai:
        ai.messages.create(**{**ASK, **body})
        request = served.service.requests[0]
        assert [(message.role.value, message.text) for message in request.messages] == expected
        calls = [call for message in request.messages for call in message.tool_calls]
        assert all(json.loads(call.arguments) == {"command": "ls", "x": None} for call in calls)
        if calls:
            assert next(m.reasoning for m in request.messages if m.tool_calls) == "hm"


BAD = [
    {"messages": []},
    {"messages": "hi"},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "wizard", "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x/y"}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "!"}}]}]},
    {"max_tokens": 0},
    {"max_tokens": "many"},
    {"temperature": 1.5},
    {"stop_sequences": [""]},
    {"tools": [{"name": "x"}]},
    {"tools": [TOOL, TOOL]},
    {"tool_choice": {"type": "any"}},
    {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}},
    {"output_config": {"format": {"type": "xml"}}},
]


@pytest.mark.parametrize("stream", [False, True])
def test_wrong_bodies_are_400_in_anthropics_words_and_name_the_field(stream):
    with served_elsewhere() as served, client(served) as ai:
        for body in BAD:
            with pytest.raises(anthropic.BadRequestError) as caught:
                ai.post("/v1/messages", body={**ASK, "stream": stream, **body}, cast_to=object)
            error = caught.value.body["error"]
            assert error["type"] == "invalid_request_error"
            assert next(iter(body)) in error["message"], (body, error)
        assert served.service.requests == []


def test_what_an_agent_adds_is_accepted():
    extras = {
        "safeguards": {"x": 1},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "u"},
        "tools": [
            {**TOOL, "cache_control": {"type": "ephemeral"}},
            {"name": "Later", "input_schema": {"type": "object"}, "defer_loading": True},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
            {"type": "bash_20250124", "name": "bash"},
            {"type": "advisor_20260301", "name": "advisor"},
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    }
    service = ScriptedService(cards=(CARD.__class__(id="smol", tool_format="hermes"),))
    with served_elsewhere(service) as served, client(served) as ai:
        ai.post("/v1/messages?beta=true", body={**ASK, **extras}, cast_to=object)
        request = service.requests[0]
        assert [tool.name for tool in request.tools] == ["run", "bash"]
        assert "web_search, advisor" in request.messages[0].text
        assert request.tool_choice.parallel is False
        assert request.conversation == "u"
        assert request.template_options == {"enable_thinking": True, "reasoning_effort": "high"}
