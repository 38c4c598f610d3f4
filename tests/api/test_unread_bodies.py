"""Answers that come before the body of their request was read."""

from __future__ import annotations

import pytest
import trio

from saiserve import limits
from tests.api.serving import Served, serving

HEAD = b"POST /nowhere HTTP/1.1\r\nHost: n\r\n"
LAST = b"GET /health HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n"


async def answers(served: Served, *pieces: bytes, pause: float = 0.05) -> bytes:
    """All that comes back until the server closes the connection."""
    seen = b""
    async with await trio.open_tcp_stream(*served.address) as connection:
        for piece in pieces:
            await connection.send_all(piece)
            await trio.sleep(pause)
        with trio.fail_after(60):
            while part := await connection.receive_some():
                seen += part
    return seen


async def test_a_short_body_that_comes_after_its_head_leaves_the_connection_usable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "UNREAD_BODY_S", 60.0)
    async with serving() as served:
        seen = await answers(served, HEAD + b"Content-Length: 5\r\n\r\n", b"{   }", LAST)
    first, _, second = seen.partition(b"HTTP/1.1 200 ")
    assert first.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" not in first.lower()
    assert second


async def test_a_long_or_uncounted_body_is_told_that_the_connection_closes():
    long = f"Content-Length: {limits.UNREAD_BODY_BYTES_MAX + 1}\r\n\r\n".encode()
    async with serving() as served:
        for framing in (long, b"Transfer-Encoding: chunked\r\n\r\n"):
            seen = await answers(served, HEAD + framing)
            assert seen.startswith(b"HTTP/1.1 401 ")
            assert b"connection: close" in seen.lower()


async def test_a_short_body_that_never_comes_is_not_waited_for_long():
    async with serving() as served:
        seen = await answers(served, HEAD + b"Content-Length: 5\r\n\r\n")
    assert seen.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in seen.lower()
