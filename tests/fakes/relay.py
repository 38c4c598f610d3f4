"""A forwarder in front of one node, UDP and TCP on one port, that keeps what passed so that it can be sent again."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

import trio

from saiserve.bench.ports import free_port

HOST = "127.0.0.1"
KEPT_MAX = 50_000
"""Datagrams and requests kept; the first ones stay."""


@dataclass
class Relay:
    """Stands at `port` for the node at `behind`. Other nodes use the relay's address only."""

    behind: int
    port: int
    datagrams: list[bytes] = field(default_factory=list)
    """What passed towards the node, in order."""
    requests: list[bytes] = field(default_factory=list)
    """What was written to the node on each connection, whole connections in order of their end."""
    longest: int = 0
    is_cut: bool = False
    """Nothing passes: datagrams are dropped and connections closed."""
    scopes: set[trio.CancelScope] = field(default_factory=set)
    """Of the connections that are open."""

    def cut(self) -> None:
        """Let nothing pass from now on."""
        self.is_cut = True
        for scope in self.scopes:
            scope.cancel()

    def mend(self) -> None:
        """Let everything pass again."""
        self.is_cut = False

    @property
    def address(self) -> str:
        """host:port others use."""
        return f"{HOST}:{self.port}"

    async def run(self, udp: trio.socket.SocketType, listener: trio.SocketListener) -> None:
        """Forward until cancelled."""
        with udp:
            await self._run(udp, listener)

    async def _run(self, udp: trio.socket.SocketType, listener: trio.SocketListener) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._datagrams, udp)
            nursery.start_soon(trio.serve_listeners, self._connection, [listener])

    async def _datagrams(self, udp: trio.socket.SocketType) -> None:
        with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            while True:
                data, _ = await udp.recvfrom(65_535)
                if self.is_cut:
                    continue
                self.longest = max(self.longest, len(data))
                if len(self.datagrams) < KEPT_MAX:
                    self.datagrams.append(data)
                await _send(out, data, self.behind)

    async def _connection(self, stream: trio.SocketStream) -> None:
        written = bytearray()
        if self.is_cut:
            await stream.aclose()
            return
        try:
            node = await trio.open_tcp_stream(HOST, self.behind)
        except OSError:
            return  # the node is down: the connection closes, as it would have been refused
        scope = trio.CancelScope()
        self.scopes.add(scope)
        try:
            with scope:
                async with stream, node, trio.open_nursery() as nursery:
                    nursery.start_soon(_pump, node, stream, bytearray(), scope)
                    nursery.start_soon(_pump, stream, node, written, scope)
        finally:
            self.scopes.discard(scope)
            if written and len(self.requests) < KEPT_MAX:
                self.requests.append(bytes(written))


async def open_relay(nursery: trio.Nursery, behind: int) -> Relay:
    """Open a relay on a free port for the node that listens, or will listen, at `behind`."""
    port = free_port()
    listener, *_ = await trio.open_tcp_listeners(port, host=HOST)
    udp = trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    await udp.bind((HOST, port))
    relay = Relay(behind, port)
    nursery.start_soon(relay.run, udp, listener)
    return relay


async def inject(relay: Relay, datagrams: list[bytes], *, per_s: int, source: str = HOST) -> None:
    """Send datagrams straight to the node behind a relay, from an address nobody knows."""
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        await out.bind((source, 0))
        for number, data in enumerate(datagrams):
            await _send(out, data, relay.behind)
            if number % 50 == 49:
                await trio.sleep(50 / per_s)


async def inject_requests(relay: Relay, requests: list[bytes]) -> None:
    """Write whole recorded connections to the node behind a relay once more."""
    for request in requests:
        stream = await trio.open_tcp_stream(HOST, relay.behind)
        async with stream:
            await stream.send_all(request)
            await stream.send_eof()
            with trio.move_on_after(0.3):  # the node keeps its connections open
                while await stream.receive_some():
                    pass


async def _send(out: trio.socket.SocketType, data: bytes, port: int) -> None:
    try:
        await out.sendto(data, (HOST, port))
    except OSError:
        return  # the node is down


async def _pump(source: trio.SocketStream, sink: trio.SocketStream, kept: bytearray, scope: trio.CancelScope) -> None:
    try:
        async for piece in source:
            kept += piece
            await sink.send_all(piece)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    scope.cancel()
