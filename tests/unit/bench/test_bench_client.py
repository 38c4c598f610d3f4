"""The measuring client against a server that says exactly what it is told to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from saiserve.bench.client import AnswerError, Client

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(text: str | None = None, usage: dict[str, object] | None = None) -> bytes:
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}, "finish_reason": None}]
    return b"data: " + json.dumps({"id": "x", "choices": choices, "usage": usage}).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
WHOLE = b"".join(
    map(chunk, [event("one "), event("two "), event("three"), event(usage=USAGE), b"data: [DONE]\n\n", b""])
)


@asynccontextmanager
async def saying(pieces: Sequence[bytes], *, ends: bool = False) -> AsyncIterator[tuple[Client, list[bytes]]]:
    """A server that answers each request with these pieces, and what it was asked."""
    asked: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            while True:
                data = await stream.receive_some(65_536)
                if not data:
                    return
                asked.append(bytes(data))
                for piece in pieces:
                    await stream.send_all(piece)
                    await trio.lowlevel.checkpoint()
                if ends:
                    return

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        client = Client(listeners[0].socket.getsockname()[1], "model", "key")
        yield client, asked
        client.close()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
async def test_a_stream_is_read_whole_however_it_is_cut(size: int) -> None:
    data = HEAD + WHOLE
    async with saying([data[at : at + size] for at in range(0, len(data), size)]) as (client, asked):
        reply = await client.chat([{"role": "user", "content": "hi"}], 3)
    assert reply.text == "one two three"
    assert (reply.tokens, reply.prompt_tokens, reply.cached_tokens) == (3, 9, 4)
    assert len(reply.times) == 3
    assert reply.times == sorted(reply.times)
    assert b'"max_tokens": 3' in asked[0]
    assert b"Authorization: Bearer key" in asked[0]


async def test_a_connection_is_used_again() -> None:
    async with saying([HEAD + WHOLE]) as (client, asked):
        for _ in range(3):
            await client.chat([{"role": "user", "content": "hi"}], 3)
        assert len(client._idle) == 1
    assert len(asked) == 3


async def test_a_refusal_is_an_error_that_shows_the_answer() -> None:
    refusal = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 15\r\n\r\n" + b'{"error":"busy"'
    async with saying([refusal]) as (client, _):
        with pytest.raises(AnswerError, match=r"status 503.*busy"):
            await client.ask("GET", "/health")


async def test_a_stream_that_is_cut_is_an_error_and_its_connection_is_not_kept() -> None:
    async with saying([HEAD + chunk(event("one "))], ends=True) as (client, _):
        with pytest.raises(AnswerError, match="ended inside"):
            await client.chat([{"role": "user", "content": "hi"}], 3)
        assert not client._idle


async def test_an_error_event_is_an_error() -> None:
    data = HEAD + chunk(b'data: {"error": {"message": "crashed"}}\n\n') + chunk(b"")
    async with saying([data]) as (client, _):
        with pytest.raises(AnswerError, match="crashed"):
            await client.chat([{"role": "user", "content": "hi"}], 3)
