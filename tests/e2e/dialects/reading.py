"""Reads replies as strictly as their dialects allow."""

from __future__ import annotations

import json
from typing import Any

import httpx2

MESSAGES = "/v1/messages"


def strict_json(content: bytes) -> Any:
    """A JSON document in UTF-8 without NaN and Infinity. AssertionError or ValueError when it is none."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    return json.loads(content.decode("utf-8", "strict"), parse_constant=refuse)


def assert_refused(path: str, reply: httpx2.Response, status: int, field: str = "") -> str:
    """Check an error in the dialect of its route that names the field; return its message."""
    assert reply.status_code == status, (reply.status_code, reply.text[:500])
    assert reply.headers["content-type"] == "application/json"
    body = strict_json(reply.content)
    error = body["error"]
    if path.startswith(MESSAGES):
        assert body["type"] == "error"
        assert set(error) == {"type", "message"}
    else:
        assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] in {"invalid_request_error", "not_found_error"}, error
    assert field in f"{error.get('param')} {error['message']}", error
    return str(error["message"])


def events(reply: httpx2.Response) -> list[dict[str, Any]]:
    """The JSON events of a stream; comments are left out, anything else is a fault."""
    assert reply.status_code == 200, reply.text[:500]
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for line in reply.content.decode("utf-8", "strict").split("\n"):
        if not line or line.startswith((":", "event: ")):
            continue
        assert line.startswith("data: "), line
        if line != "data: [DONE]":
            found.append(strict_json(line.removeprefix("data: ").encode()))
    return found


def told(path: str, reply: httpx2.Response, *, stream: bool) -> tuple[str, str, str | None, int]:
    """Text, finish or stop reason, stop sequence and completion tokens of a reply of any of the three dialects."""
    if path == MESSAGES:
        return _message(reply, stream=stream)
    parts = events(reply) if stream else [strict_json(reply.content)]
    text, finish, tokens = "", "", 0
    for part in parts:
        assert "error" not in part, part
        for choice in part["choices"]:
            said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            text += said.get("content") or ""
            finish = choice["finish_reason"] or finish
        tokens = (part.get("usage") or {}).get("completion_tokens", tokens)
    return text, finish, None, tokens


def _message(reply: httpx2.Response, *, stream: bool) -> tuple[str, str, str | None, int]:
    if not stream:
        body = strict_json(reply.content)
        text = "".join(block["text"] for block in body["content"])
        return text, body["stop_reason"], body["stop_sequence"], body["usage"]["output_tokens"]
    text = ""
    ending: dict[str, Any] = {}
    for event in events(reply):
        assert event["type"] != "error", event
        if event["type"] == "content_block_delta":
            text += event["delta"]["text"]
        elif event["type"] == "message_delta":
            ending = event
    delta = ending["delta"]
    return text, delta["stop_reason"], delta["stop_sequence"], ending["usage"]["output_tokens"]
