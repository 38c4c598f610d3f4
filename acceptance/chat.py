"""A strict reader of chat streams: notices a second id or role, a lost or repeated token, a wrong count."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx2


@dataclass
class Stream:
    """What one streamed chat was made of."""

    text: str = ""
    ids: set[str] = field(default_factory=set)
    roles: int = 0
    finish: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    token_bytes: bytes = b""
    tokens: int = 0
    done: bool = False
    route: str = ""

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from a cache."""
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def chat_body(model: str, content: str, max_tokens: int, **extra: Any) -> dict[str, Any]:
    """A streamed chat that says how many tokens it took."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **extra,
    }


async def stream_chat(client: httpx2.AsyncClient, body: dict[str, Any]) -> Stream:
    """Run one streamed chat to its end.

    Raises:
        AssertionError: a status other than 200, an error event, bytes that are no event, or no [DONE].
    """
    result = Stream()
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise AssertionError(f"status {response.status_code}: {(await response.aread())[:500]!r}")
        result.route = response.headers.get("x-sai-route", "")
        async for line in response.aiter_lines():
            if not line or line.startswith(":"):
                continue
            assert line.startswith("data: "), f"not an event: {line!r}"
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                result.done = True
                continue
            _take(result, json.loads(data))
    assert result.done, "the stream ended without [DONE]"
    return result


def _take(result: Stream, chunk: dict[str, Any]) -> None:
    assert "error" not in chunk, f"an error reached the client: {chunk['error']}"
    result.ids.add(chunk["id"])
    if chunk.get("usage"):
        result.usage = chunk["usage"]
    for choice in chunk["choices"]:
        delta = choice["delta"]
        result.roles += "role" in delta
        result.text += delta.get("content") or ""
        for entry in (choice.get("logprobs") or {}).get("content") or ():
            result.tokens += 1
            result.token_bytes += bytes(entry["bytes"] or ())
        if choice.get("finish_reason"):
            result.finish.append(choice["finish_reason"])


def check_stream(stream: Stream, *, completion_tokens: int) -> None:
    """One id, one role, one finish, the asked number of tokens, each token's bytes once and in order.

    Needs `logprobs` to have been asked for. Raises AssertionError.
    """
    assert len(stream.ids) == 1, f"{len(stream.ids)} ids in one stream"
    assert stream.roles == 1, f"{stream.roles} roles in one stream"
    assert stream.finish == ["length"], f"finish reasons {stream.finish}"
    counted = stream.usage.get("completion_tokens")
    assert counted == completion_tokens, f"completion_tokens {counted}, asked for {completion_tokens}"
    assert stream.tokens == completion_tokens, f"{stream.tokens} tokens arrived, {completion_tokens} were counted"
    assert stream.token_bytes.decode("utf-8", "replace") == stream.text, "the text is not the tokens' bytes"
