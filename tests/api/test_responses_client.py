"""The official OpenAI client's Responses calls, and what Codex needs beyond them."""

from __future__ import annotations

import json

import openai
import pytest
import trio
from openai.types.responses import Response

from saiserve.api.responses_store import ResponseStore
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
from tests.api.serving import KEY, Served, served_elsewhere, serving
from tests.fakes.service import CARD, ScriptedService, saying
from tests.property.api.events import server_sent

FUNCTION = {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {}}, "strict": False}
NATIVE = (CARD.__class__(id="smol", tool_format="hermes", capabilities=frozenset({"chat", "tools", "reasoning"})),)


def client(served: Served, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0)


def test_a_response_completes_whole_and_streamed():
    with served_elsewhere() as served, client(served) as ai:
        whole = ai.responses.create(model="smol", input="hi", instructions="be brief")
        with ai.responses.stream(model="smol", input="hi") as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_response()
        for reply in (whole, streamed):
            assert reply.output_text == "Hello there."
            assert reply.status == "completed"
            assert (reply.usage.input_tokens, reply.usage.input_tokens_details.cached_tokens) == (7, 3)
            assert reply.usage.total_tokens == 12
        assert kinds[:4] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert kinds[-4:] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [message.text for message in served.service.requests[0].messages] == ["be brief", "hi"]


def test_the_whole_object_has_every_required_field():
    with served_elsewhere() as served, client(served) as ai:
        raw = json.loads(ai.responses.with_raw_response.create(model="smol", input="hi").text)
        Response.model_validate(raw)
        required = {"id", "created_at", "model", "object", "output", "parallel_tool_calls", "tool_choice", "tools"}
        nullable = {"error", "incomplete_details", "instructions", "metadata", "temperature", "top_p"}
        assert required | nullable <= set(raw)


def test_reasoning_and_calls_come_back_as_items():
    script = [
        Started(5, 0),
        ReasoningDelta(0, "hm"),
        ToolCallStarted(0, 0, "call_a", "run"),
        ToolCallDelta(0, 0, '{"x": 1}'),
        ToolCallStarted(0, 1, "call_b", "run"),
        ChoiceFinished(0, StopKind.TOOL_CALLS),
        Usage(5, 0, 9, 2),
    ]
    with served_elsewhere(ScriptedService(lambda request: script)) as served, client(served) as ai:
        options = {"model": "smol", "input": "hi", "tools": [FUNCTION]}
        whole = ai.responses.create(**options, include=["reasoning.encrypted_content"])
        with ai.responses.stream(**options, reasoning={"summary": "auto"}) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_response()
        assert [item.type for item in whole.output] == ["reasoning", "function_call", "function_call"]
        assert whole.output[0].content[0].text == "hm"
        assert streamed.output[0].summary[0].text == "hm"
        assert [(i.call_id, i.name, i.arguments) for i in streamed.output[1:]] == [
            ("call_a", "run", '{"x": 1}'),
            ("call_b", "run", "{}"),
        ]
        assert "response.reasoning_summary_text.delta" in kinds
        assert whole.usage.output_tokens_details.reasoning_tokens == 2
        again = [item.model_dump(exclude_none=True) for item in whole.output]
        again[0].pop("content")
        again += [{"type": "function_call_output", "call_id": f"call_{name}", "output": "ok"} for name in "ab"]
        ai.responses.create(model="smol", input=[{"role": "user", "content": "hi"}, *again])
        messages = served.service.requests[-1].messages
        assert [message.role.value for message in messages] == ["user", "assistant", "user", "user"]
        assert messages[1].reasoning == "hm"


def test_namespaced_and_free_form_tools_come_back_in_the_clients_terms():
    raw = (
        '<tool_call>{"name": "multi_agent_v1__close_agent", "arguments": {"id": "a"}}</tool_call>'
        '<tool_call>{"name": "apply_patch", "arguments": {"input": "*** Begin"}}</tool_call>'
    )
    tools = [
        {
            "type": "namespace",
            "name": "multi_agent_v1",
            "description": "",
            "tools": [{**FUNCTION, "name": "close_agent"}],
        },
        {
            "type": "custom",
            "name": "apply_patch",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"},
        },
        {"type": "web_search", "external_web_access": False},
    ]
    service = ScriptedService(saying(raw), cards=NATIVE)
    with served_elsewhere(service) as served, client(served) as ai:
        for body in ({"stream": True}, {}):
            asked = {"model": "smol", "input": "hi", "tools": tools, "store": False, **body}
            reply = ai.post("/responses", body=asked, cast_to=object, options={"headers": {}})
            if not body:
                first, second = reply["output"]
                assert (first["type"], first["namespace"], first["name"]) == (
                    "function_call",
                    "multi_agent_v1",
                    "close_agent",
                )
                assert (second["type"], second["name"], second["input"]) == (
                    "custom_tool_call",
                    "apply_patch",
                    "*** Begin",
                )
        seen = service.requests[0]
        assert [tool.name for tool in seen.tools] == ["multi_agent_v1__close_agent", "apply_patch"]
        assert "start: X" in seen.tools[1].description
        assert "web_search" in seen.messages[0].text


def test_a_cut_answer_is_incomplete_and_a_broken_one_failed():
    cut = ScriptedService(saying("abc", kind=StopKind.LENGTH))
    with served_elsewhere(cut) as served, client(served) as ai:
        reply = ai.responses.create(model="smol", input="hi", max_output_tokens=16)
        assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    failed = AnswerFailed(ApiError(ErrorKind.CONTEXT_TOO_LONG, "no", prompt_tokens=9, context_tokens=8))
    broken = ScriptedService(lambda request: [Started(1, 0), TextDelta(0, "a"), failed])
    with served_elsewhere(broken) as served, client(served) as ai:
        events = list(ai.responses.create(model="smol", input="hi", stream=True))
        assert events[-1].type == "response.failed"
        assert events[-1].response.error.code == "context_length_exceeded"
        assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_stored_response_is_continued_read_and_deleted_by_its_own_key_only():
    with served_elsewhere() as served, client(served) as ai, client(served, "another-client-key") as other:
        first = ai.responses.create(model="smol", input="one", instructions="not carried over")
        second = ai.responses.create(model="smol", input="two", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        said = [(message.role.value, message.text) for message in served.service.requests[1].messages]
        assert said == [("user", "one"), ("assistant", "Hello there."), ("user", "two")]
        assert ai.responses.retrieve(first.id).output_text == "Hello there."
        assert len(ai.responses.input_items.list(first.id).data) == 1
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError):
            ai.responses.cancel(first.id)
        ai.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            ai.responses.create(model="smol", input="x", previous_response_id=first.id)
        unkept = ai.responses.create(model="smol", input="x", store=False)
        with pytest.raises(openai.NotFoundError):
            ai.responses.retrieve(unkept.id)


def test_a_streamed_response_is_kept_too_and_tokens_are_counted():
    with served_elsewhere() as served, client(served) as ai:
        with ai.responses.stream(model="smol", input="one") as stream:
            final = stream.get_final_response()
        assert ai.responses.retrieve(final.id).output_text == "Hello there."
        assert ai.responses.input_tokens.count(model="smol", input="four").input_tokens == len("<user>four")


def test_codex_items_mean_what_they_say():
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}], "id": "m1"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
        {"type": "function_call", "call_id": "c1", "name": "run", "arguments": "{}", "namespace": "ns"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "text"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "out"}]},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
        {"type": "compaction", "encrypted_content": "xyz"},
    ]
    service = ScriptedService(cards=NATIVE)
    with served_elsewhere(service) as served, client(served) as ai:
        ai.post(
            "/responses",
            body={"model": "smol", "input": items, "client_metadata": {"x": 1}, "prompt_cache_key": "k"},
            cast_to=object,
        )
        request = service.requests[0]
        assert [(m.role.value, m.text, m.reasoning) for m in request.messages] == [
            ("system", "rules", ""),
            ("user", "go", ""),
            ("assistant", "ok", "hm"),
            ("tool", "out", ""),
            ("tool", "done", ""),
        ]
        calls = request.messages[2].tool_calls
        assert [(call.id, call.name) for call in calls] == [("c1", "ns__run"), ("c2", "patch")]
        assert json.loads(calls[1].arguments) == {"input": "text"}
        assert request.conversation == "k"


def test_an_item_of_a_kept_response_is_found_by_its_id_alone():
    service = ScriptedService()
    with served_elsewhere(service) as served, client(served) as ai:
        first = ai.responses.create(model="smol", input="one")
        for named in ({"type": "item_reference"}, {"type": None}, {}):
            again = [
                {"role": "user", "content": "one"},
                {"id": first.output[0].id, **named},
                {"role": "user", "content": "two"},
            ]
            ai.post("/responses", body={"model": "smol", "input": again}, cast_to=object)
            request = service.requests[-1]
            assert [(m.role.value, m.text) for m in request.messages] == [
                ("user", "one"),
                ("assistant", "Hello there."),
                ("user", "two"),
            ]
            assert request.raw == b""  # a target does not know what is kept here
        with pytest.raises(openai.BadRequestError, match=r"input\[2\]: this item is named twice"):
            ai.post("/responses", body={"model": "smol", "input": [*again[:2], again[1]]}, cast_to=object)
        ai.responses.delete(first.id)
        with pytest.raises(openai.BadRequestError, match="no kept response holds this item"):
            ai.post("/responses", body={"model": "smol", "input": again}, cast_to=object)


def test_a_warm_up_without_input_is_answered():
    with served_elsewhere() as served, client(served) as ai:
        assert ai.post("/responses", body={"model": "smol", "max_output_tokens": 1}, cast_to=object)["status"]


BAD = [
    ({"input": [{"type": "message", "role": "wizard", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "message", "role": "user"}]}, "input[0].content"),
    ({"input": [{"type": "mystery"}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///etc"}]}]},
        "input[0].content",
    ),
    ({"input": 5}, "input"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [FUNCTION, FUNCTION]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"background": True}, "background"),
    ({"conversation": "c"}, "conversation"),
    ({"temperature": 3}, "temperature"),
]


@pytest.mark.parametrize("stream", [False, True])
def test_wrong_bodies_are_400_and_name_the_field(stream):
    with served_elsewhere() as served, client(served) as ai:
        for body, param in BAD:
            with pytest.raises(openai.BadRequestError) as caught:
                ai.post("/responses", body={"model": "smol", "input": "hi", "stream": stream, **body}, cast_to=object)
            assert caught.value.param.startswith(param), (body, caught.value)


@pytest.mark.parametrize("connection", ["Upgrade", "keep-alive"])
async def test_a_websocket_try_is_answered_426_so_that_the_client_posts_at_once(connection):
    head = (
        f"GET /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nUpgrade: websocket\r\n"
        f"Connection: {connection}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with serving() as served, await trio.open_tcp_stream(*served.address) as stream:
        await stream.send_all(head.encode())
        seen = b""
        with trio.fail_after(30):
            while b"upgrade_required" not in seen:
                part = await stream.receive_some()
                assert part, seen
                seen += part
        assert seen.startswith(b"HTTP/1.1 426")
        assert b"content-type: application/json" in seen.lower()
        assert b"\r\nx-request-id: req_" in seen
        assert b"\r\nrequest-id: req_" in seen


async def test_events_are_named_and_numbered_and_end_without_done():
    async with serving() as served, served.http() as http:
        reply = await http.post("/v1/responses", json={"model": "smol", "input": "hi", "stream": True})
        events = [(name, json.loads(data)) for name, data in server_sent(reply.content)]
        assert all(name == body["type"] for name, body in events)
        assert [body["sequence_number"] for _, body in events] == list(range(len(events)))


def test_the_store_keeps_the_newest_within_its_bounds():
    store = ResponseStore(count_max=2, bytes_max=10_000)
    for name in ("a", "b", "c"):
        store.put({"id": name}, [], (), "key")
    assert store.get("c", "key").body == {"id": "c"}
    with pytest.raises(ApiError):
        store.get("a", "key")
    store.put({"id": "big", "x": "y" * 20_000}, [], (), "key")
    with pytest.raises(ApiError):
        store.get("big", "key")
    store.put({"id": "half", "x": "y" * 9_965}, [], (), "key")
    with pytest.raises(ApiError):
        store.get("c", "key")
