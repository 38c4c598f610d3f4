"""One HTTP exchange as the handlers see it: a call comes in, a reply or an event stream goes out.

`Endpoint` is the only place where a handler meets ASGI: it reads the body, watches for the client going away, and turns
every fault into an error reply.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec
import trio

from saiserve import limits
from saiserve.api.body import check_media_type, decompress, too_large
from saiserve.api.errors import ErrorStyle, error_body, error_headers, error_style, overflowing_field
from saiserve.api.turnstile import Turnstile
from saiserve.errors import ApiError, ErrorKind

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger("saiserve.api")

SEND_PIECE = "saiserve.send_piece"
"""Where the server puts `Call.send_piece` into the scope."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")


class ClientGone(Exception):  # noqa: N818  # an event, not a fault
    """The client closed the connection; nothing can be said to it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, read and authenticated."""

    method: str
    path: str
    """Decoded, as routed."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Lower-case names; the last of repeated ones."""
    path_params: Mapping[str, str]
    body: bytes
    request_id: str
    key_name: str
    style: ErrorStyle
    unique_id: str = ""
    """Drawn here for each request; the request id too, unless the client sent one of its own."""
    send_piece: Send | None = None
    """Sends a middle piece of a body past what only looks at a reply's head and end; a stream has one for every token."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply."""

    body: bytes
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    media_type: str = "application/json"


def json_reply(value: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    """Return a JSON reply."""
    return Reply(msgspec.json.encode(value), status, headers)


class Outcome(Protocol):
    """A reply that is sent piece by piece."""

    async def send(self, call: Call, send: Send) -> None:
        """Send it all.

        Raises:
            ApiError: before the first byte only.
        """
        ...


Handler = Callable[[Call], Awaitable["Reply | Outcome"]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An ASGI application around one handler; `takes_body` says whether a body is read and must be JSON."""

    handler: Handler
    takes_body: bool = False
    body_bytes_max: int = field(default=limits.BODY_BYTES_MAX)
    turnstile: Turnstile | None = None
    """Where requests with a body wait for their turn."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started = False

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._answer(scope, receive, noting_send)
        except ClientGone:
            return
        except ApiError as error:
            await send_error(scope, send, error)
        except Exception:
            logger.exception("request %s failed in its handler", request_id_of(scope))
            if started:
                raise
            await send_error(scope, send, ApiError(ErrorKind.INTERNAL, "The server made a mistake; it is logged."))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        body = b""
        if self.takes_body:
            check_media_type(headers.get("content-type", ""))
            body = await read_body(receive, headers.get("content-length", ""), self.body_bytes_max)
            if self.turnstile is not None:
                await self.turnstile.pass_through()
            body = decompress(body, headers.get("content-encoding", ""), self.body_bytes_max)
        call = Call(
            method=scope["method"],
            path=scope["path"],
            query=dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)),
            headers=headers,
            path_params=scope.get("path_params", {}),
            body=body,
            request_id=request_id_of(scope),
            key_name=scope.get("saiserve.key_name", ""),
            style=error_style(scope["path"]),
            unique_id=scope.get("saiserve.unique_id", ""),
            send_piece=scope.get(SEND_PIECE),
        )
        await until_client_gone(receive, self._respond, call, send)

    async def _respond(self, call: Call, send: Send) -> None:
        outcome = await self.handler(call)
        if isinstance(outcome, Reply):
            await send_reply(send, outcome, is_head=call.method == "HEAD")
        else:
            await outcome.send(call, send)


async def until_client_gone(
    receive: Receive, work: Callable[[Call, Send], Awaitable[None]], call: Call, send: Send
) -> None:
    """Run `work`, cancelled when the client closes the connection.

    Raises:
        ClientGone: when that happened.
        ApiError: from `work`, as it was raised.
    """
    failure: Exception | None = None
    gone = False

    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            nonlocal gone
            while (await receive())["type"] != "http.disconnect":
                pass
            gone = True
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        try:
            await work(call, send)
        except Exception as error:  # noqa: BLE001  # carried out of the nursery bare
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if gone:
        raise ClientGone


async def read_body(receive: Receive, content_length: str, limit: int) -> bytes:
    """Read a request body of at most `limit` bytes.

    Raises:
        ApiError: 413, at once when `Content-Length` already says so; 408 after a long silence.
        ClientGone: the client left before the end.
    """
    if content_length.isascii() and content_length.isdigit() and int(content_length[:20]) > limit:
        raise too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        with trio.move_on_after(limits.BODY_SILENCE_S) as waiting:
            message = await receive()
        if waiting.cancelled_caught:
            raise ApiError(ErrorKind.BODY_TOO_SLOW, "The rest of the body did not come in time.")
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def send_reply(send: Send, reply: Reply, *, is_head: bool = False) -> None:
    """Send a whole reply."""
    headers = [(b"content-type", reply.media_type.encode()), (b"content-length", str(len(reply.body)).encode())]
    headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if is_head else reply.body, "more_body": False})


async def send_error(scope: Scope, send: Send, error: ApiError) -> None:
    """Send an error in the style of the path that was asked for."""
    style = error_style(scope["path"])
    body = error_body(error, style, request_id_of(scope), field=overflowing_field(scope["path"]))
    reply = Reply(body, error.row.status, tuple(error_headers(error, style)))
    await send_reply(send, reply, is_head=scope["method"] == "HEAD")


def request_id_of(scope: Scope) -> str:
    """Return the id given to this exchange by the outermost layer."""
    return str(scope.get("saiserve.request_id", ""))


def acceptable_request_id(offered: str) -> bool:
    """Whether a client's own request id is short and plain enough to be echoed in headers and logs."""
    return _REQUEST_ID.fullmatch(offered) is not None
