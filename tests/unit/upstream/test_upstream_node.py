"""A node without an engine in front of upstream targets: relays, translations, errors, and what never travels."""

from __future__ import annotations

import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from saiserve.engines.upstream.reading import pieces_of
from tests.fakes.upstream import (
    KEY,
    MODEL,
    UPSTREAM_KEY,
    Playback,
    PlaybackUpstream,
    chat_body,
    chat_stream,
    delta,
    front,
    fronting,
    message_stream,
    messages_body,
    split,
    upstream_table,
    usage,
)

JSON = (("content-type", "application/json"),)
HELLO = chat_stream(
    delta(role="assistant", content=""), delta(content="Hi "), delta(content="there"), delta("stop"), usage(9, 2, 4)
)
MESSAGE = [
    {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "real",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 1},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi there"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 2},
    },
    {"type": "message_stop"},
]


def playing(*plays: Playback) -> PlaybackUpstream:
    return PlaybackUpstream(list(plays))


def openai(url: str, **more: Any) -> dict[str, Any]:
    return {"cloud": upstream_table(f"{url}/v1", "openai", **more)}


def anthropic(url: str, **more: Any) -> dict[str, Any]:
    return {"cloud": upstream_table(url, "anthropic", **more)}


def sse(body: str) -> list[Any]:
    found = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in found if line != "[DONE]"]


async def test_a_stream_of_the_same_dialect_is_relayed_byte_for_byte(tmp_path: Path) -> None:
    async with playing(Playback(split(HELLO, 7))).running() as up, fronting(front(tmp_path, openai(up.url))) as client:
        body = chat_body(stream=True, stream_options={"include_usage": True}, an_unknown_field={"kept": [1, 2.50]})
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.content == HELLO
    assert answer.headers["content-type"] == "text/event-stream"
    assert "cloud" in answer.headers["x-sai-route"]
    assert up.heard[0].json == {**body, "model": MODEL}
    assert b'"kept":[1,2.5' in up.heard[0].body


async def test_usage_is_asked_for_and_counted_but_not_shown_to_who_did_not_ask(tmp_path: Path) -> None:
    node_upstream = playing(Playback([HELLO]))
    async with node_upstream.running() as up, fronting(front(tmp_path, openai(up.url))) as client:
        answer = await client.post("/v1/chat/completions", json=chat_body(stream=True))
        metrics = (await client.get("/metrics")).text
    assert up.heard[0].json["stream_options"] == {"include_usage": True}
    assert not any(chunk.get("usage") for chunk in sse(answer.text))
    assert answer.text.endswith("data: [DONE]\n\n")
    assert f'saiserve_completion_tokens_total{{model="{MODEL}"}} 2.0' in metrics
    assert f'saiserve_prompt_tokens_total{{model="{MODEL}"}} 9.0' in metrics


async def test_a_whole_answer_of_the_same_dialect_is_relayed(tmp_path: Path) -> None:
    completion = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "real",
        "system_fingerprint": "odd",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    }
    raw = json.dumps(completion, indent=1).encode()
    async with (
        playing(Playback([raw], headers=JSON)).running() as up,
        fronting(front(tmp_path, openai(up.url))) as client,
    ):
        answer = await client.post("/v1/chat/completions", json=chat_body())
    assert answer.content == raw


async def test_an_anthropic_client_reaches_an_anthropic_target_unchanged(tmp_path: Path) -> None:
    stream = message_stream(*MESSAGE)
    async with (
        playing(Playback(split(stream, 11))).running() as up,
        fronting(front(tmp_path, anthropic(up.url))) as client,
    ):
        headers = {
            "anthropic-beta": "interleaved-thinking-2025-05-14",
            "anthropic-version": "2023-06-01",
            "x-app": "cli",
        }
        body = messages_body(stream=True, thinking={"type": "adaptive"}, context_management={"edits": []})
        answer = await client.post("/v1/messages?beta=true", json=body, headers=headers)
    assert answer.content == stream
    assert up.heard[0].path == "/v1/messages"
    assert up.heard[0].json == body
    assert up.heard[0].headers["anthropic-beta"] == headers["anthropic-beta"]
    assert up.heard[0].headers["x-api-key"] == UPSTREAM_KEY
    assert "x-app" not in up.heard[0].headers


async def test_credentials_of_clients_never_travel(tmp_path: Path) -> None:
    async with playing(Playback([HELLO])).running() as up, fronting(front(tmp_path, openai(up.url))) as client:
        await client.post(
            "/v1/chat/completions", json=chat_body(stream=True), headers={"cookie": "session=secret-cookie"}
        )
        await client.post("/v1/messages", json=messages_body(stream=True), headers={"x-api-key": KEY})
    for heard in up.heard:
        assert heard.headers["authorization"] == f"Bearer {UPSTREAM_KEY}"
        assert KEY not in json.dumps([heard.headers, heard.body.decode()])
        assert "cookie" not in heard.headers


@pytest.mark.parametrize("every", [1, 3, 1000])
async def test_an_anthropic_client_reads_an_openai_target(tmp_path: Path, every: int) -> None:
    async with (
        playing(Playback(split(HELLO, every))).running() as up,
        fronting(front(tmp_path, openai(up.url))) as client,
    ):
        answer = await client.post("/v1/messages", json=messages_body(stream=True, system="Be brief."))
    events = sse(answer.text)
    assert [e["type"] for e in events][:2] == ["message_start", "content_block_start"]
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    assert "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta") == "Hi there"
    assert events[-2]["delta"]["stop_reason"] == "end_turn"
    assert events[-2]["usage"]["input_tokens"] == 5
    assert events[-2]["usage"]["cache_read_input_tokens"] == 4
    assert up.heard[0].json["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "temperature" not in up.heard[0].json


async def test_an_openai_client_reads_an_anthropic_target(tmp_path: Path) -> None:
    stream = message_stream(*MESSAGE).replace(b"\n", b"\r\n")
    async with playing(Playback(split(b": hello\r\n\r\n" + stream, 2))).running() as up:
        async with fronting(front(tmp_path, anthropic(up.url))) as client:
            body = chat_body(stream=True, stream_options={"include_usage": True}, temperature=1.5)
            answer = await client.post("/v1/chat/completions", json=body)
    chunks = sse(answer.text)
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert text == "Hi there"
    assert chunks[-1]["usage"]["prompt_tokens"] == 9
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert up.heard[0].json["temperature"] == 1.0
    assert up.heard[0].json["max_tokens"] == 32


@pytest.mark.parametrize(
    ("status", "body", "headers", "expected", "code"),
    [
        (429, {"error": {"message": "slow down"}}, (("retry-after", "7"),), 429, "rate_limit_exceeded"),
        (529, {"error": {"type": "overloaded_error"}}, (), 429, "rate_limit_exceeded"),
        (401, {"error": {"message": "bad key sk-123"}}, (), 502, "upstream_failed"),
        (404, {"error": {"message": "no such model"}}, (), 502, "upstream_failed"),
        (500, {"error": {"message": "boom"}}, (), 502, "upstream_failed"),
        (302, {}, (("location", "http://127.0.0.1:9/"),), 502, "upstream_failed"),
        (400, {"error": {"message": "temperature is odd"}}, (), 400, "upstream_refused"),
        (400, {"error": {"code": "context_length_exceeded", "message": "no"}}, (), 400, "context_length_exceeded"),
    ],
)
async def test_errors_of_a_target_are_told_as_whose_they_are(
    tmp_path: Path, status: int, body: dict[str, Any], headers: tuple[tuple[str, str], ...], expected: int, code: str
) -> None:
    play = Playback([json.dumps(body).encode()], status, (*JSON, *headers))
    async with playing(play).running() as up, fronting(front(tmp_path, openai(up.url))) as client:
        answer = await client.post("/v1/chat/completions", json=chat_body(stream=True))
    assert answer.status_code == expected, answer.text
    assert answer.json()["error"]["code"] == code
    assert "sk-123" not in answer.text
    assert UPSTREAM_KEY not in answer.text
    assert len(up.heard) == 1
    if headers and status == 429:
        assert answer.headers["retry-after"] == "7"
    if status == 400 and "odd" in str(body):
        assert answer.json()["error"]["message"] == "temperature is odd"


async def test_an_overflow_is_told_in_the_clients_own_words_with_the_numbers(tmp_path: Path) -> None:
    said = "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens."
    play = Playback([json.dumps({"error": {"message": said}}).encode()], 400, JSON)
    async with playing(play).running() as up, fronting(front(tmp_path, openai(up.url))) as client:
        answer = await client.post("/v1/messages", json=messages_body(stream=True))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "prompt is too long: 5000 tokens > 4096 maximum"


async def test_a_target_that_fails_before_its_first_word_leaves_the_next_one_free(tmp_path: Path) -> None:
    async with playing(Playback([b"{}"], 503, JSON)).running() as bad, playing(Playback([HELLO])).running() as good:
        targets = {"a": upstream_table(f"{bad.url}/v1", "openai"), "b": upstream_table(f"{good.url}/v1", "openai")}
        async with fronting(front(tmp_path, targets)) as client:
            for _ in range(4):
                answer = await client.post("/v1/chat/completions", json=chat_body(stream=True))
                assert answer.status_code == 200
                assert "Hi " in answer.text
    assert len(good.heard) == 4


async def test_an_error_event_before_the_first_word_leaves_the_next_one_free(tmp_path: Path) -> None:
    error = message_stream(MESSAGE[0], {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
    async with (
        playing(Playback([error])).running() as bad,
        playing(Playback([message_stream(*MESSAGE)])).running() as good,
    ):
        targets = {"a": upstream_table(bad.url, "anthropic"), "b": upstream_table(good.url, "anthropic")}
        async with fronting(front(tmp_path, targets)) as client:
            for _ in range(4):
                answer = await client.post("/v1/messages", json=messages_body(stream=True))
                assert answer.content == message_stream(*MESSAGE)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_stream_that_is_cut_ends_in_the_dialects_error_and_never_normally(tmp_path: Path, path: str) -> None:
    begun = chat_stream(delta(content="Half an ans"), done=False) + b'data: {"choi'
    async with (
        playing(Playback([begun], cut=True)).running() as up,
        fronting(front(tmp_path, openai(up.url))) as client,
    ):
        answer = await client.post(path, json=chat_body(stream=True))
    assert "Half an ans" in answer.text
    assert "[DONE]" not in answer.text
    assert "message_stop" not in answer.text
    last = sse(answer.text)[-1]
    assert "error" in last
    assert 'data: {"choi' not in answer.text.replace('data: {"choices', "")


async def test_a_stream_without_a_finish_reason_is_a_fault(tmp_path: Path) -> None:
    stream = chat_stream(delta(content="Hi"))
    async with playing(Playback([stream])).running() as up, fronting(front(tmp_path, openai(up.url))) as client:
        answer = await client.post("/v1/messages", json=messages_body(stream=True))
    assert sse(answer.text)[-1]["type"] == "error"


async def test_a_targets_own_error_event_is_the_last_thing_a_relayed_client_reads(tmp_path: Path) -> None:
    stream = message_stream(*MESSAGE[:4], {"type": "error", "error": {"type": "api_error", "message": "their words"}})
    async with playing(Playback([stream])).running() as up, fronting(front(tmp_path, anthropic(up.url))) as client:
        answer = await client.post("/v1/messages", json=messages_body(stream=True))
        metrics = (await client.get("/metrics")).text
    assert answer.content == stream
    assert f'saiserve_requests_total{{model="{MODEL}",outcome="failed"}} 1.0' in metrics


async def test_a_client_that_leaves_ends_the_work_at_the_target(tmp_path: Path) -> None:
    begun = chat_stream(delta(content="Hi"), done=False)
    async with (
        playing(Playback([begun], hold=True)).running() as up,
        fronting(front(tmp_path, openai(up.url))) as client,
    ):
        async with client.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as answer:
            async with aclosing(pieces_of(answer)) as pieces:
                await anext(pieces)
        with trio.fail_after(60):
            while not up.gone:
                await trio.sleep(0.01)


async def test_nobody_reaches_a_target_that_no_name_gives_away(tmp_path: Path) -> None:
    """A model that a member holds stays in the house, also when an upstream has one of that name."""
    async with playing(Playback([HELLO])).running() as up:
        table = upstream_table(f"{up.url}/v1", "openai") | {"models": ["sim"]}
        node = front(tmp_path, {"cloud": table}, models="simulated:sim?decode_rate=500")
        async with fronting(node) as client:
            answer = await client.post("/v1/chat/completions", json=chat_body(model="sim"))
    assert answer.status_code == 200
    assert "node-a" in answer.headers["x-sai-route"]
    assert not up.heard


async def test_several_choices_are_several_requests(tmp_path: Path) -> None:
    async with playing(Playback([HELLO])).running() as up, fronting(front(tmp_path, openai(up.url))) as client:
        answer = await client.post("/v1/chat/completions", json=chat_body(n=2, stream=True, seed=5))
    text = {0: "", 1: ""}
    for chunk in sse(answer.text):
        for choice in chunk["choices"]:
            text[choice["index"]] += choice["delta"].get("content") or ""
    assert text == {0: "Hi there", 1: "Hi there"}
    assert sorted(heard.json["seed"] for heard in up.heard) == [5, 6]
    assert all("n" not in heard.json for heard in up.heard)


async def test_models_of_targets_are_listed(tmp_path: Path) -> None:
    table = upstream_table("http://127.0.0.1:9/v1", "openai") | {
        "models": {"big": {"name": "vendor/big", "context_tokens": 1000, "capabilities": ["chat", "vision"]}}
    }
    async with fronting(front(tmp_path, {"cloud": table})) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        unreachable = await client.post("/v1/chat/completions", json=chat_body(model="big"))
    assert [model["id"] for model in listed] == ["big"]
    assert unreachable.status_code == 502
    assert "'cloud' cannot be reached" in unreachable.json()["error"]["message"]


async def test_tokens_are_counted_where_the_target_can(tmp_path: Path) -> None:
    count = Playback([b'{"input_tokens": 41}'], headers=JSON)
    async with playing(count).running() as up, fronting(front(tmp_path, anthropic(up.url))) as client:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
        answer = await client.post("/v1/messages/count_tokens", json=body)
    assert answer.json() == {"input_tokens": 41}
    assert up.heard[0].path == "/v1/messages/count_tokens"


async def test_embeddings_come_from_an_openai_target(tmp_path: Path) -> None:
    data = [{"index": 1, "embedding": [0.0, 2.0]}, {"index": 0, "embedding": [3.0, 4.0]}]
    play = Playback([json.dumps({"data": data, "usage": {"prompt_tokens": 6}}).encode()], headers=JSON)
    async with playing(play).running() as up:
        table = upstream_table(f"{up.url}/v1", "openai") | {"models": {"emb": {"capabilities": ["embeddings"]}}}
        async with fronting(front(tmp_path, {"cloud": table})) as client:
            answer: httpx2.Response = await client.post("/v1/embeddings", json={"model": "emb", "input": ["a", "b"]})
    vectors = [[round(x, 3) for x in item["embedding"]] for item in answer.json()["data"]]
    assert vectors == [[0.6, 0.8], [0.0, 1.0]]
    assert answer.json()["usage"]["prompt_tokens"] == 6
