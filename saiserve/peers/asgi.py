"""The few ASGI words that the peer port needs: what came, from where, and answers without an application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from swimcluster.address import Address
from swimcluster.transport.udp_datagrams import readable_address

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    """Cancel `scope` once the caller has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def read_body(receive: Receive, admits: Callable[[int], bool], deadline_s: float) -> bytes | None:
    """The body, or None when it does not come within `deadline_s` or `admits` refuses the length it has grown to."""
    data = bytearray()
    with trio.move_on_after(deadline_s):
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                return None
            data += event.get("body", b"")
            if not admits(len(data)):
                return None
            if not event.get("more_body", False):
                return bytes(data)
    return None


def header(scope: Scope, name: bytes) -> bytes:
    """The first header of this name (in lower case); empty when there is none."""
    return next((bytes(value) for key, value in scope["headers"] if key.lower() == name), b"")


def source_of(scope: Scope) -> Address | None:
    """Where a request came from; an IPv4 address as such on a socket of both families too."""
    client = scope.get("client")
    return readable_address((str(client[0]), int(client[1]))) if client else None


def opening(status: int, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """The beginning of an answer."""
    return {"type": "http.response.start", "status": status, "headers": headers}


async def answer_bytes(send: Send, status: int, body: bytes) -> None:
    """Answer with bytes; an empty 204 has no headers at all."""
    headers = [(b"content-length", str(len(body)).encode())]
    if body:
        headers.append((b"content-type", b"application/octet-stream"))
    await send(opening(status, [] if status == 204 else headers))
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def answer_text(send: Send, status: int, text: str) -> None:
    """Answer with a sentence."""
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send(opening(status, headers))
    await send({"type": "http.response.body", "body": body, "more_body": False})
