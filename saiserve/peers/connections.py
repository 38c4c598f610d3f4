"""Kept-alive HTTP/1.1 connections to other nodes: h11 over trio streams, a bounded pool for each address.

Knows nothing of what is sent. A connection goes back to the pool only after a whole reply; any fault, any cancellation
and any reply left unread closes it, which is also how a request in progress is called off.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h11
import trio

from saiserve import limits
from swimcluster.address import Address

_RECEIVE_BYTES = 65_536
_DRAIN_S = 0.5
"""Longest wait for the end of a reply whose content is complete."""

_BROKEN = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError)

_SWEEP_S = 10.0
"""How often connections that were not used are looked through."""

Headers = list[tuple[bytes, bytes]]


class LinkError(Exception):
    """The connection could not be made or broke. `sent` is False when no request can have left."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of a reply; names in lower case."""

    status: int
    headers: dict[bytes, bytes]


class _Wire:
    """One TCP connection with its HTTP state."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.CLIENT)
        self.idle_since = 0.0
        self.has_heard = False
        """Whether any byte of the current reply came."""

    def is_fresh(self) -> bool:
        """Whether the other side has neither closed nor spoken out of turn while it was idle."""
        if trio.current_time() - self.idle_since > limits.PEER_IDLE_S:
            return False
        descriptor = self.stream.socket.fileno()
        if descriptor < 0:  # closed on this side
            return False
        poll = select.poll()
        poll.register(descriptor, select.POLLIN | select.POLLHUP | select.POLLERR)
        return not poll.poll(0)

    async def next_event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event  # type: ignore[return-value]
            data = await self.stream.receive_some(_RECEIVE_BYTES)
            self.has_heard = self.has_heard or bool(data)
            self.http.receive_data(data)


@dataclass(slots=True)
class _Host:
    """Connections to one address."""

    open: int = 0
    idle: deque[_Wire] = field(default_factory=deque)


class Link:
    """One request and its reply on one connection. Made by `Connections.link`."""

    def __init__(self, pool: Connections, address: Address, wire: _Wire, *, is_reused: bool) -> None:
        self._pool = pool
        self._address = address
        self._wire = wire
        self._is_reused = is_reused

    async def request(self, method: str, target: str, headers: Headers, body: bytes) -> Head:
        """Send one request and wait for the reply's head.

        A kept connection that the other side closed before it answered is replaced once and the same bytes are sent
        again; whoever must not see them twice has to recognise them (the peer protocol's counter does).

        Raises:
            LinkError: no connection, or it broke before the head came.
        """
        lines = [(b"host", str(self._address).encode()), (b"content-length", str(len(body)).encode()), *headers]
        request = h11.Request(method=method, target=target, headers=lines)
        try:
            return await self._exchange(request, body)
        except _BROKEN as error:
            if not self._is_reused or self._wire.has_heard:
                raise self._broken(error) from error
        await trio.aclose_forcefully(self._wire.stream)
        self._is_reused = False
        self._wire = await self._pool.connect(self._address)
        try:
            return await self._exchange(request, body)
        except _BROKEN as error:
            raise self._broken(error) from error

    async def chunk(self) -> bytes | None:
        """The next piece of the reply's body, None at its end.

        Raises:
            LinkError: the connection broke before the end.
        """
        try:
            event = await self._wire.next_event()
        except _BROKEN as error:
            raise self._broken(error) from error
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if isinstance(event, h11.EndOfMessage):
            return None
        raise LinkError(f"{self._address} ended its reply early", sent=True)

    async def body(self, bytes_max: int) -> bytes:
        """The whole body of a reply.

        Raises:
            LinkError: it is longer than `bytes_max`, or the connection broke.
        """
        data = bytearray()
        while (chunk := await self.chunk()) is not None:
            data += chunk
            if len(data) > bytes_max:
                raise LinkError(f"{self._address} sent more than {bytes_max} bytes", sent=True)
        return bytes(data)

    async def drain(self) -> None:
        """Wait for the end of a reply whose content is complete, so that the connection can be used again."""
        with trio.move_on_after(_DRAIN_S):
            await self.chunk()

    def _broken(self, error: BaseException) -> LinkError:
        return LinkError(f"the connection to {self._address} broke: {_why(error)}", sent=True)

    async def _exchange(self, request: h11.Request, body: bytes) -> Head:
        http = self._wire.http
        data = http.send(request) or b""
        data += http.send(h11.Data(data=body)) or b""
        data += http.send(h11.EndOfMessage()) or b""
        await self._wire.stream.send_all(data)
        while True:
            event = await self._wire.next_event()
            if isinstance(event, h11.Response):
                return Head(event.status_code, dict(event.headers))
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("no reply came")

    async def close(self, *, keep: bool) -> None:
        """Give the connection back if it can be used again, else close it at once."""
        http = self._wire.http
        if keep and http.our_state is http.their_state is h11.DONE:
            http.start_next_cycle()
            self._pool.give_back(self._address, self._wire)
        elif keep and http.our_state is http.their_state is h11.IDLE:
            self._pool.give_back(self._address, self._wire)
        else:
            self._pool.forget(self._address)
            await trio.aclose_forcefully(self._wire.stream)


class Connections:
    """Pools of connections by address."""

    def __init__(
        self,
        *,
        most: int = limits.PEER_CONNECTIONS_MAX,
        idle_most: int = limits.PEER_CONNECTIONS_IDLE_MAX,
        connect_s: float = limits.CONNECT_S,
    ) -> None:
        self._most = most
        self._idle_most = idle_most
        self._connect_s = connect_s
        self._hosts: dict[Address, _Host] = {}
        self._swept_at = -_SWEEP_S

    @property
    def open(self) -> int:
        """Connections in use."""
        return sum(host.open for host in self._hosts.values())

    @property
    def idle(self) -> int:
        """Connections kept for later."""
        return sum(len(host.idle) for host in self._hosts.values())

    @asynccontextmanager
    async def link(self, address: Address) -> AsyncIterator[Link]:
        """A connection for one request, kept or new.

        Raises:
            LinkError: none could be made; `sent` is False.
        """
        if trio.current_time() >= self._swept_at + _SWEEP_S:
            self._swept_at = trio.current_time()
            self.sweep()
        host = self._hosts.setdefault(address, _Host())
        if host.open >= self._most:
            raise LinkError(f"{self._most} connections to {address} are in use", sent=False)
        host.open += 1
        try:
            kept = await self._take(host)
            link = Link(self, address, kept or await self.connect(address), is_reused=kept is not None)
        except BaseException:
            self.forget(address)
            raise
        keep = False
        try:
            yield link
            keep = True
        finally:
            await link.close(keep=keep)

    async def connect(self, address: Address) -> _Wire:
        """A new connection.

        Raises:
            LinkError: nobody answers there within the connect deadline.
        """
        try:
            with trio.fail_after(self._connect_s):
                return _Wire(await trio.open_tcp_stream(address.host, address.port))
        except (OSError, trio.TooSlowError) as error:
            raise LinkError(f"no connection to {address}: {_why(error)}", sent=False) from error

    def give_back(self, address: Address, wire: _Wire) -> None:
        """Keep a connection for later; the oldest makes room."""
        host = self._hosts[address]
        host.open -= 1
        wire.idle_since, wire.has_heard = trio.current_time(), False
        host.idle.append(wire)
        while len(host.idle) > self._idle_most:
            host.idle.popleft().stream.socket.close()

    def forget(self, address: Address) -> None:
        """A connection in use is gone."""
        host = self._hosts[address]
        host.open -= 1
        if not host.open and not host.idle:
            del self._hosts[address]

    def sweep(self) -> None:
        """Close connections that were idle for too long or that the other side closed.

        Nothing is awaited: a connection that is found stale here must not be taken by another task meanwhile.
        """
        for address, host in list(self._hosts.items()):
            stale = [wire for wire in host.idle if not wire.is_fresh()]
            for wire in stale:
                host.idle.remove(wire)
                wire.stream.socket.close()
            if not host.open and not host.idle:
                del self._hosts[address]

    async def aclose(self) -> None:
        """Close all idle connections."""
        for host in list(self._hosts.values()):
            while host.idle:
                await trio.aclose_forcefully(host.idle.pop().stream)

    async def _take(self, host: _Host) -> _Wire | None:
        while host.idle:
            wire = host.idle.pop()
            if wire.is_fresh():
                return wire
            await trio.aclose_forcefully(wire.stream)
        return None


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__
