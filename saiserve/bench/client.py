"""A small streaming HTTP/1.1 client, the same for all servers, light enough to share a machine with what it measures."""

from __future__ import annotations

import json
import select
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

CLOSING_S = 0.02
"""A server that ends a connection after an answer does so within this."""
RECEIVE_BYTES = 65_536
ANSWER_S = 240.0
"""Longest time for one answer unless told otherwise."""


class AnswerError(Exception):
    """A server answered with an error, or not as HTTP is spoken."""


@dataclass
class Reply:
    """One streamed answer and when its pieces came, in seconds since the request was sent."""

    text: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sent_at: float = 0.0
    """On the clock of `time.perf_counter`."""
    times: list[float] = field(default_factory=list)
    """When each piece of text came."""

    @property
    def first_s(self) -> float:
        """Time to the first piece of text."""
        return self.times[0]

    @property
    def gaps(self) -> list[float]:
        """Times between pieces."""
        return [late - early for early, late in zip(self.times, self.times[1:], strict=False)]

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first."""
        return (self.tokens - 1) / (self.times[-1] - self.times[0])


class Client:
    """Connections to one server, kept alive and used again."""

    def __init__(self, port: int, model: str, key: str = "", *, answer_s: float = ANSWER_S) -> None:
        self.port = port
        self.model = model
        self._key = key
        self._answer_s = answer_s
        self._idle: list[trio.SocketStream] = []

    async def chat(self, messages: list[dict[str, str]], tokens: int, **extra: Any) -> Reply:
        """Stream one chat answer of exactly `tokens` tokens.

        Raises:
            AnswerError: anything but a whole answer.
        """
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **extra,
        }
        reply = Reply()
        with trio.fail_after(self._answer_s):
            async with self._connection() as connection:
                reply.sent_at = time.perf_counter()
                async with aclosing(self._lines(connection, "POST", "/v1/chat/completions", body)) as lines:
                    async for line in lines:
                        if line.startswith(b"data: {"):
                            _take(reply, json.loads(line[6:]), time.perf_counter() - reply.sent_at)
        if not reply.times or not reply.tokens:
            raise AnswerError(f"an answer without text or usage from port {self.port}")
        return reply

    async def ask(self, method: str, path: str, body: Any = None) -> bytes:
        """Return the body of a plain request's answer."""
        with trio.fail_after(self._answer_s):
            async with self._connection() as connection:
                return b"\n".join([line async for line in self._lines(connection, method, path, body)])

    def close(self) -> None:
        """Close idle connections."""
        for connection in self._idle:
            connection.socket.close()
        self._idle.clear()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[trio.SocketStream]:
        connection = await self._reusable() or await trio.open_tcp_stream("127.0.0.1", self.port)
        try:
            yield connection
        except BaseException:
            await trio.aclose_forcefully(connection)
            raise
        self._idle.append(connection)

    async def _reusable(self) -> trio.SocketStream | None:
        """An idle connection that the server has not closed."""
        if self._idle:
            await trio.sleep(CLOSING_S)
        while self._idle:
            connection = self._idle.pop()
            readable, _, _ = select.select([connection.socket], [], [], 0)
            if not readable:  # nothing is said between answers but the end
                return connection
            connection.socket.close()
        return None

    async def _lines(
        self, connection: trio.SocketStream, method: str, path: str, body: Any
    ) -> AsyncGenerator[bytes, None]:
        """Send a request; give the lines of its answer's body as they come."""
        payload = b"" if body is None else json.dumps(body).encode()
        head = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", f"Content-Length: {len(payload)}"]
        head += ["Content-Type: application/json", f"Authorization: Bearer {self._key}", "X-SAI-Cluster: " + self._key]
        await connection.send_all("\r\n".join([*head, "", ""]).encode() + payload)
        buffer = b""
        while b"\r\n\r\n" not in buffer:
            buffer += await _receive(connection)
        header, _, buffer = buffer.partition(b"\r\n\r\n")
        status = header.split(b" ", 2)[1]
        chunked = b"chunked" in header.lower()
        pieces = _chunked(connection, buffer) if chunked else _sized(connection, buffer, _length(header))
        rest = b""
        async with aclosing(pieces):
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                if status != b"200":
                    rest = b"\n".join([*lines, rest])
                    continue
                for line in lines:
                    yield line
        if status != b"200":
            raise AnswerError(f"{method} {path} on port {self.port}: status {status.decode()} {rest[:400]!r}")
        if rest:
            yield rest


def _take(reply: Reply, chunk: dict[str, Any], at: float) -> None:
    if "error" in chunk:
        raise AnswerError(str(chunk["error"]))
    usage = chunk.get("usage")
    if usage:
        reply.tokens = usage["completion_tokens"]
        reply.prompt_tokens = usage["prompt_tokens"]
        reply.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    for choice in chunk["choices"]:
        text = choice["delta"].get("content")
        if text:
            reply.text += text
            reply.times.append(at)


def _length(header: bytes) -> int:
    for line in header.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise AnswerError("an answer without a length")


async def _receive(connection: trio.SocketStream) -> bytes:
    data = await connection.receive_some(RECEIVE_BYTES)
    if not data:
        raise AnswerError("the connection ended inside an answer")
    return bytes(data)


async def _sized(connection: trio.SocketStream, buffer: bytes, length: int) -> AsyncGenerator[bytes, None]:
    while len(buffer) < length:
        buffer += await _receive(connection)
    yield buffer


async def _chunked(connection: trio.SocketStream, buffer: bytes) -> AsyncGenerator[bytes, None]:
    while True:
        while b"\r\n" not in buffer:
            buffer += await _receive(connection)
        size_text, _, buffer = buffer.partition(b"\r\n")
        size = int(size_text.partition(b";")[0], 16)
        while len(buffer) < size + 2:
            buffer += await _receive(connection)
        if size == 0:
            while b"\r\n" not in buffer:  # the empty line that ends it belongs to this answer
                buffer += await _receive(connection)
            return
        yield buffer[:size]
        buffer = buffer[size + 2 :]
