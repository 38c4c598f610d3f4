"""Connections of the node's port: hypercorn's HTTP/1.1 on trio, with what strangers may do to one kept inside it.

Six things differ from hypercorn's own server. A fault in one connection ends that connection and not the process.
HTTP/2 is not spoken, asked for or assumed: nobody here needs it, and it is a second parser for strangers' bytes. And a
connection is read on while its request is answered, also when more bytes follow the request (pipelining, or the CRLF
that some clients append): the end of the connection is seen at once, which is how clients call work off. And what
hypercorn reads otherwise than RFC 9112 says, absolute targets and half handshakes, is made plain before it sees it. What
is no request at all is told what is wrong with it, in the words of every other error (http_faults.py). And connections
never take the last descriptors (descriptors.py): more of them wait, and one that its client has closed is closed here.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import Any, Final

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.ws_stream import Handshake
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState
from hypercorn.utils import parse_socket_addr, wrap_app

from saiserve import limits
from saiserve.api.errors import ErrorStyle, error_body
from saiserve.errors import ApiError
from saiserve.http_faults import parser_fault, two_lengths_fault, version_fault
from swimcluster.nursery import open_plain_nursery

log = logging.getLogger(__name__)

RECEIVE_BYTES: Final = 65_536
SEND_BYTES: Final = 65_536
"""Bytes that a client must take within `CLIENT_STALL_S`."""
READ_AHEAD_PIECES: Final = 1
"""Pieces taken from a connection while its request is answered. With more behind, its end shows when it is read."""

ACCEPTS_IN_A_TURN: Final = 64
"""Connections accepted in one turn of the loop: a health probe behind a burst is heard at once. What the requests of the
burst then ask for waits at the application's turnstile."""
ACCEPT_REST_S: Final = 0.1
_NO_MORE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""The machine or the process has no room for one more connection; this passes."""

_HTTP_1: Final = (b"1.0", b"1.1")
_ABSOLUTE: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
"""What an absolute target has before its path (RFC 9112 §3.2.2)."""


async def serve_connections(
    app: Any,
    config: Config,
    listener: socket.socket,
    stop: Callable[[], Awaitable[None]],
    *,
    connections_max: int = sys.maxsize,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` returns; then refuse new connections and give open ones `config.graceful_timeout` to end.

    Args:
        listener: a listening TCP socket; closed here.
        connections_max: open at once; more wait until one has ended.
    """
    context = WorkerContext(None)
    wrapped = wrap_app(app, config.wsgi_max_body_size, "asgi")
    serve_one = partial(_serve_one, wrapped, config, context)
    async with trio.open_nursery() as connections:
        try:
            with listener:
                async with open_plain_nursery() as nursery:
                    nursery.start_soon(_accept, listener, connections, serve_one, connections_max)
                    task_status.started()
                    await stop()
                    nursery.cancel_scope.cancel()
        finally:
            await context.terminated.set()
            connections.cancel_scope.deadline = trio.current_time() + config.graceful_timeout


async def _accept(
    listener: socket.socket,
    nursery: trio.Nursery,
    serve_one: Callable[[trio.SocketStream], Awaitable[None]],
    connections_max: int,
) -> None:
    """Accept for ever, a few in each turn of the loop; a process without room for more waits until there is."""
    listener.setblocking(False)
    was_full = False
    while True:
        await trio.lowlevel.wait_readable(listener)
        is_full = len(nursery.child_tasks) >= connections_max
        if is_full and not was_full:
            log.warning("%d connections are open: new ones wait until one has ended", len(nursery.child_tasks))
        was_full = is_full
        if is_full:
            await trio.sleep(ACCEPT_REST_S)
            continue
        for _ in range(min(ACCEPTS_IN_A_TURN, connections_max - len(nursery.child_tasks))):
            try:
                connection, _address = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            except OSError as error:
                if error.errno not in _NO_MORE:
                    raise
                log.warning("no new connection can be taken: %s", error.strerror)
                await trio.sleep(ACCEPT_REST_S)
                break
            nursery.start_soon(serve_one, trio.SocketStream(trio.socket.from_stdlib_socket(connection)))


async def _serve_one(app: Any, config: Config, context: WorkerContext, stream: trio.SocketStream) -> None:
    try:
        await _Connection(app, config, context, ConnectionState(LifespanState({})), stream).run()
    except* Exception:
        log.exception("a connection failed and was closed; the others go on")
    finally:
        await trio.aclose_forcefully(stream)


class _Connection(TCPServer):  # type: ignore[misc]
    """One connection."""

    _reading: trio.CancelScope
    _is_over = False
    """The client has ended its side: no further request is waited for."""

    async def run(self) -> None:
        """Speak HTTP/1.1 until either side ends the connection."""
        try:
            address = partial(parse_socket_addr, self.stream.socket.family)
            client = address(self.stream.socket.getpeername())
            server = address(self.stream.socket.getsockname())
            async with TaskGroup() as group:
                self._task_group = group
                self.protocol = _Http1(
                    *(self.app, self.config, self.context, group, self.state, False, client, server),
                    self.protocol_send,
                )
                await self.idle_task.restart(group, self._idle_timeout)
                await self._read_data()
        except OSError:
            pass  # gone before it was looked at
        finally:
            await self._close()

    async def protocol_send(self, event: Event) -> None:
        """Send; what the socket takes at once is written without a lock, a scope and a turn of the loop for each piece.

        Nothing overtakes a piece that is still being sent: that one holds the lock.
        """
        if isinstance(event, RawData) and not self.send_lock.locked():
            try:
                sent = os.write(self.stream.socket.fileno(), event.data)
            except OSError:  # full, or at its end: the slow way waits, or ends the connection as it should
                sent = 0
            if sent == len(event.data):
                return
            event = RawData(event.data[sent:])
        if isinstance(event, RawData):
            await self._send_all(event.data)
        elif isinstance(event, Closed) and self.protocol.has_refused:
            await self._close_behind_an_answer()
        elif isinstance(event, Updated) and event.idle and self._is_over:
            await self.idle_task.stop()
        else:
            await super().protocol_send(event)

    async def _send_all(self, data: bytes) -> None:
        """Send what must wait, shielded as hypercorn does it; who takes nothing for long is gone."""
        async with self.send_lock:
            try:
                for start in range(0, len(data), SEND_BYTES):
                    with trio.CancelScope(deadline=trio.current_time() + limits.CLIENT_STALL_S, shield=True) as waiting:
                        await self.stream.send_all(data[start : start + SEND_BYTES])
                    if waiting.cancelled_caught:
                        log.info("a client did not read for %g s: its connection is closed", limits.CLIENT_STALL_S)
                        await trio.aclose_forcefully(self.stream)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await self.protocol.handle(Closed())

    async def _close_behind_an_answer(self) -> None:
        """Say that nothing follows, and for a moment read off what the client still sends.

        A socket closed over bytes that nobody read resets its connection, and the client may lose the answer that says
        what is wrong with them (RFC 9112 §9.6).
        """
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            await self.stream.send_eof()
        await self.protocol.handle(Closed())
        self._reading.deadline = trio.current_time() + limits.UNREAD_BODY_S

    async def _read_data(self) -> None:
        """Read to the end, whether or not what was read can be taken yet."""
        put, pieces = trio.open_memory_channel[bytes](READ_AHEAD_PIECES)
        async with open_plain_nursery() as nursery:
            self._reading = nursery.cancel_scope
            nursery.start_soon(self._take, pieces)
            with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
                while data := await self.stream.receive_some(RECEIVE_BYTES):
                    await put.send(bytes(data))
            nursery.cancel_scope.cancel()
        self._is_over = True
        await self.protocol.handle(Closed())
        await self.idle_task.stop()

    async def _take(self, pieces: trio.MemoryReceiveChannel[bytes]) -> None:
        async for data in pieces:
            if not self.protocol.has_refused:
                await self.protocol.handle(RawData(data))


class _Parser(h11.Connection):
    """A parser that keeps the words of its last error."""

    words = ""

    def next_event(self) -> Any:
        """Return the next event of what was received."""
        try:
            return super().next_event()
        except h11.RemoteProtocolError as error:
            self.words = str(error)
            raise


class _Http1(H11Protocol):  # type: ignore[misc]
    """HTTP/1.1 that stays it, and says why when it is none.

    hypercorn has no hook for that: it catches the parser's error by itself and sends a status with an empty body. The
    least that changes it is to replace the one method that sends it, and to have the parser keep its words, because only
    the status is given on. Its loop stays its own.
    """

    has_refused = False
    """What came was no request; the connection ends, and what else comes is not read as one."""
    _is_head = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._parser = _Parser(h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size)
        self.connection = self._parser

    async def _check_protocol(self, event: h11.Request) -> None:
        """Take no offer of HTTP/2: an upgrade may be ignored (RFC 9110 §7.8)."""

    async def _create_stream(self, request: h11.Request) -> None:
        """Begin to answer a request, if it is of a version spoken here and its length is beyond doubt."""
        self._is_head = request.method == b"HEAD"
        names = {name for name, _ in request.headers}
        if request.http_version not in _HTTP_1:
            await self._refuse(version_fault(request.http_version.decode("ascii")))
        elif {b"content-length", b"transfer-encoding"} <= names:
            await self._refuse(two_lengths_fault())
        else:
            await super()._create_stream(_plain(request))

    async def _refuse(self, error: ApiError) -> None:
        await self._answer(error)
        await self.send(Closed())

    async def _send_error_response(self, status_code: int) -> None:
        """Answer an error of the parser's; hypercorn closes the connection then."""
        del status_code
        await self._answer(parser_fault(self._parser.words))

    async def _answer(self, error: ApiError) -> None:
        """Send what is wrong as JSON of OpenAI's shape: nobody can know what dialect this would have been."""
        self.has_refused = True
        # Of a request that could not be read nobody knows the method.
        has_body = self._parser.our_state is h11.IDLE or not self._is_head
        body = error_body(error, ErrorStyle.OPENAI)
        request_id = f"req_{token_hex(16)}".encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(b"x-request-id", request_id), (b"request-id", request_id)]
        headers += [(b"connection", b"close"), *self.config.response_headers("h11")]
        await self._send_h11_event(h11.Response(status_code=error.row.status, headers=headers))
        if has_body:
            await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


def _plain(request: h11.Request) -> h11.Request:
    """Return a request as the application reads it: its target a path, and no handshake in it that is none.

    hypercorn answers half a WebSocket handshake itself and then forgets to close the connection; an offer to upgrade may
    be ignored (RFC 9110 §7.8), and then it is a request like any other.
    """
    headers, target = list(request.headers), request.target
    handshake = Handshake(headers, request.http_version.decode("ascii"))
    asks = any(token.lower() == "upgrade" for token in handshake.connection_tokens or ())
    if asks and handshake.upgrade is not None and not handshake.is_valid():
        headers = [(name, value) for name, value in headers if name != b"upgrade"]
    if place := _ABSOLUTE.match(target):
        rest = target[place.end() :]
        target = rest if rest.startswith(b"/") else b"/" + rest
    return h11.Request(method=request.method, target=target, headers=headers, http_version=request.http_version)
