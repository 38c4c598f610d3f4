"""What agents run into at a whole node: limits larger than the room, prompts that do not fit, many counts at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from tests.fakes.upstream import front, fronting
from tests.property.api.events import server_sent

MODEL = "simulated:sim?context_tokens=256&answer_tokens=100000&decode_rate=100000&prefill_rate=1000000"
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
LIMIT = {"/v1/responses": "max_output_tokens"}


def body(path: str, text: str, **more: Any) -> dict[str, Any]:
    asked = {"input": text} if path == "/v1/responses" else {"messages": [{"role": "user", "content": text}]}
    return {"model": "sim", LIMIT.get(path, "max_tokens"): 128_000, **asked, **more}


def cut(path: str, answer: dict[str, Any]) -> bool:
    if path == "/v1/responses":
        return bool(answer["incomplete_details"] == {"reason": "max_output_tokens"})
    if path == "/v1/messages":
        return bool(answer["stop_reason"] == "max_tokens")
    return bool(answer["choices"][0]["finish_reason"] == "length")


@pytest.mark.parametrize("path", PATHS)
async def test_a_limit_beyond_the_room_is_cut_to_it(tmp_path: Path, path: str) -> None:
    async with fronting(front(tmp_path, {}, models=MODEL)) as client:
        answer = await client.post(path, json=body(path, "Hello"))
    assert answer.status_code == 200, answer.text
    assert cut(path, answer.json())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_prompt_that_does_not_fit_is_400_before_the_first_byte(tmp_path: Path, path: str, stream: bool) -> None:
    tool = {"name": "go", "description": "word " * 400}
    tools = {
        "/v1/chat/completions": [{"type": "function", "function": tool}],
        "/v1/messages": [{**tool, "input_schema": {"type": "object"}}],
        "/v1/responses": [{"type": "function", **tool}],
    }
    async with fronting(front(tmp_path, {}, models=MODEL)) as client:
        long = await client.post(path, json=body(path, "word " * 400, stream=stream))
        laden = await client.post(path, json=body(path, "Hello", stream=stream, tools=tools[path]))
    for answer in (long, laden):
        assert answer.status_code == 400, answer.text
        assert answer.headers["content-type"] == "application/json"
        error = answer.json()["error"]
        if path == "/v1/messages":
            assert error["message"].startswith("prompt is too long: ")
            assert error["message"].endswith(" tokens > 256 maximum")
        else:
            assert error["code"] == "context_length_exceeded"
            assert "maximum context length is 256 tokens" in error["message"]


async def test_thirty_counts_at_once_are_right_and_leave_a_stream_alone(tmp_path: Path) -> None:
    model = "simulated:sim?context_tokens=100000&answer_tokens=60&decode_rate=300&lanes=1"
    asked = body("/v1/messages", "Tell me.", stream=True, max_tokens=60)
    counts: dict[int, int] = {}

    async def count(client: httpx2.AsyncClient, size: int) -> None:
        tool = {"name": f"t{size}", "description": "x" * 400 * size, "input_schema": {"type": "object"}}
        question = {"model": "sim", "messages": [{"role": "user", "content": "foo"}], "tools": [tool]}
        answer = await client.post("/v1/messages/count_tokens", json=question)
        counts[size] = answer.json()["input_tokens"]

    async with fronting(front(tmp_path, {}, models=model)) as client:
        async with client.stream("POST", "/v1/messages", json=asked) as streamed:
            pieces = streamed.aiter_bytes()
            beside = await anext(pieces)
            async with trio.open_nursery() as nursery:
                for size in range(30):
                    nursery.start_soon(count, client, size)
            assert len(counts) == 30
            async for piece in pieces:
                beside += piece
    events = [json.loads(line[6:]) for line in beside.decode().splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert events[-2]["usage"]["output_tokens"] == 60
    assert [counts[size + 1] - counts[size] for size in range(10, 29)] == [100] * 19, "four bytes a token here"


FAULT_WORDS = {
    "/v1/chat/completions": ("", "invalid_request_error"),
    "/v1/completions": ("", "invalid_request_error"),
    "/v1/messages": ("error", "invalid_request_error"),
    "/v1/responses": ("response.failed", "invalid_prompt"),
}
"""The event in which a fault of the request comes in the middle of an answer, and its word for whose fault it is."""


@pytest.mark.parametrize("path", FAULT_WORDS)
async def test_what_a_request_brings_about_in_the_middle_is_its_own_fault_in_every_dialect(
    tmp_path: Path, path: str
) -> None:
    asked = {"model": "sim", "prompt": "boom"} if path == "/v1/completions" else body(path, "boom")
    async with fronting(front(tmp_path, {}, models="simulated:sim?bad_request=boom@3")) as client:
        whole = await client.post(path, json=asked)
        streamed = await client.post(path, json={**asked, "stream": True})
    assert whole.status_code == 400, whole.text
    assert whole.json()["error"]["type"] == "invalid_request_error"
    assert whole.json()["error"]["message"] == "scripted"
    event, word = FAULT_WORDS[path]
    assert streamed.status_code == 200, "it had begun"
    name, data = server_sent(streamed.content)[-1]
    assert name == event
    last = json.loads(data)
    error = last["response"]["error"] if path == "/v1/responses" else last["error"]
    assert (error.get("type") or error["code"], error["message"]) == (word, "scripted")
