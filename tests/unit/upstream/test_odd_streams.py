"""Streams as real servers write them: comments, pings, any line ends, events cut anywhere or several in one piece."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.upstream import (
    MODEL,
    Playback,
    PlaybackUpstream,
    chat_stream,
    delta,
    front,
    fronting,
    message_stream,
    split,
    upstream_table,
    usage,
)

TEXT = "Grüße, 世界"
PIECES = ("Grü", "ße, ", "世界")
COMMENT = b": ping\n\n"
START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "real",
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": 5, "output_tokens": 1},
    },
}


def of_openai() -> list[bytes]:
    chunks = [delta(role="assistant", content=""), *(delta(content=piece) for piece in PIECES), delta("stop")]
    events = [chat_stream(chunk, done=False) for chunk in (*chunks, usage(9, 3))]
    return [*events, b"data: [DONE]\n\n"]


def of_anthropic() -> list[bytes]:
    events: list[dict[str, Any]] = [
        START,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
            for piece in PIECES
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]
    return [message_stream(event, {"type": "ping"}) for event in events]


EVENTS = {"openai": of_openai(), "anthropic": of_anthropic()}
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")


def body_for(path: str) -> dict[str, Any]:
    base = {"model": MODEL, "stream": True}
    if path == "/v1/responses":
        return {**base, "input": "Hello"}
    return {**base, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}


def read_strictly(stream: bytes) -> list[dict[str, Any]]:
    """The JSON of every event; fails on anything a strict reader would not take."""
    text = stream.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    assert text.endswith("\n\n")
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        fields = [line for line in block.split("\n") if not line.startswith(":")]
        data = [line.removeprefix("data: ") for line in fields if line.startswith("data: ")]
        names = [line.removeprefix("event: ") for line in fields if line.startswith("event: ")]
        assert len(data) + len(names) == len(fields), block
        if not data or data == ["[DONE]"]:
            continue
        event = json.loads("\n".join(data))
        assert not names or names == [event["type"]]
        found.append(event)
    return found


def text_of(events: list[dict[str, Any]]) -> str:
    said = ""
    for event in events:
        if event.get("type") == "content_block_delta":
            said += event["delta"]["text"]
        elif event.get("type") == "response.output_text.delta":
            said += event["delta"]
        for choice in event.get("choices", ()):
            said += choice["delta"].get("content") or ""
    return said


def is_complete(path: str, stream: bytes, events: list[dict[str, Any]]) -> bool:
    if path == "/v1/messages":
        return events[-1]["type"] in ("message_stop", "ping") and any(e["type"] == "message_stop" for e in events)
    if path == "/v1/responses":
        return events[-1]["type"] == "response.completed"
    finishes = [choice["finish_reason"] for event in events for choice in event["choices"]]
    return b"data: [DONE]" in stream and finishes.count("stop") == 1 and finishes[-1] == "stop"


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("every", [1, 5, 64, 100_000])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dialect", list(EVENTS))
async def test_the_client_reads_the_same_text_in_a_valid_stream(
    tmp_path: Path, dialect: str, path: str, every: int, line_end: bytes
) -> None:
    stream = COMMENT + b"".join(event + COMMENT for event in EVENTS[dialect])
    pieces = split(stream.replace(b"\n", line_end), every)
    async with PlaybackUpstream([Playback(pieces)]).running() as up:
        url = f"{up.url}/v1" if dialect == "openai" else up.url
        async with fronting(front(tmp_path, {"t": upstream_table(url, dialect)})) as client:
            answer = await client.post(path, json=body_for(path))
    events = read_strictly(answer.content)
    assert text_of(events) == TEXT
    assert is_complete(path, answer.content, events)
    assert not any(
        "error" in event for event in events if event.get("object") != "response" and "response" not in event
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dialect", list(EVENTS))
async def test_a_fault_after_the_first_words_is_told_inside_the_stream(tmp_path: Path, dialect: str, path: str) -> None:
    """Comments go on to the end, then the connection breaks in the middle of an event."""
    begun = b"".join(event + COMMENT for event in EVENTS[dialect][:4])
    async with PlaybackUpstream([Playback([begun, b'data: {"x'], cut=True)]).running() as up:
        url = f"{up.url}/v1" if dialect == "openai" else up.url
        async with fronting(front(tmp_path, {"t": upstream_table(url, dialect)})) as client:
            answer = await client.post(path, json=body_for(path))
    assert answer.status_code == 200
    last = read_strictly(answer.content)[-1]
    assert last.get("error") or last["response"]["error"]
    assert last.get("type", "error") in ("error", "response.failed")
