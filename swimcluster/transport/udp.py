"""Datagrams over UDP and exchanges over TCP, both on one port number, IPv4 or IPv6 or both.

Each exchange is one TCP connection: one length-prefixed request, one length-prefixed reply. Limits stand beside
their reasons below.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from swimcluster.address import Address
from swimcluster.errors import ExchangeError
from swimcluster.nursery import open_plain_nursery
from swimcluster.transport import ExchangeHandler
from swimcluster.transport.framing import frame, read_frame
from swimcluster.transport.resolve import resolve
from swimcluster.transport.udp_datagrams import (
    NO_ADDRESS,
    SEND_WAIT_S,
    UdpDatagrams,
    bind_host,
    bind_socket,
    cannot_bind,
    close_socket,
    readable_address,
)

EXCHANGE_BYTES_MAX = 1024 * 1024
"""Default bound on a request or a reply."""
CONNECTIONS_MAX = 64
"""Exchanges answered at once; more are closed at once and counted."""
CONNECTIONS_PER_SOURCE_MAX = 16
"""Of those, from one host: one broken peer leaves room for the others."""
REQUEST_DEADLINE_S = 5.0
"""A connected peer has this long to send its whole request."""
EXCHANGE_DEADLINE_S = 10.0
"""Default bound on the life of an exchange on either side, whatever the caller allows."""
CONNECT_DEADLINE_S = 3.0
"""Longest wait for one of several addresses of a name before the next is tried."""
ADDRESSES_TRIED_MAX = 4
"""Addresses of one name tried in one exchange; the next exchange starts at the one after the first."""
PORT_ATTEMPTS_MAX = 32
"""Ephemeral ports tried until TCP and UDP are both free on one number."""


@asynccontextmanager
async def open_udp_transport(
    bind: Address, *, exchange_bytes_max: int = EXCHANGE_BYTES_MAX, exchange_timeout_s: float = EXCHANGE_DEADLINE_S
) -> AsyncIterator[UdpTransport]:
    """Bind UDP and TCP at `bind` until the context ends.

    Args:
        bind: an empty host or `::` listens on IPv6 and IPv4 alike; port 0 takes one that is free for both.
        exchange_bytes_max: bound on each request and reply, in bytes.
        exchange_timeout_s: bound on the life of an exchange on either side, in seconds.

    Raises:
        ConfigError: the address cannot be bound; the message says why.
    """
    tcp, udp = await _bind_both(bind)
    try:
        yield UdpTransport(tcp, udp, exchange_bytes_max=exchange_bytes_max, exchange_timeout_s=exchange_timeout_s)
    finally:
        close_socket(udp)
        close_socket(tcp)


class UdpTransport(UdpDatagrams):
    """UDP and TCP on one port; a `swimcluster.transport.Transport`. Made by `open_udp_transport`."""

    def __init__(
        self, tcp: socket.socket, udp: socket.socket, *, exchange_bytes_max: int, exchange_timeout_s: float
    ) -> None:
        super().__init__(udp)
        self._tcp = tcp
        self._exchange_bytes_max = exchange_bytes_max
        self._exchange_timeout_s = exchange_timeout_s
        self._rotation = 0
        self._answering: Counter[str] = Counter()

    async def exchange(self, destination: Address, data: bytes) -> bytes:
        """Send one request over a connection of its own and return the reply.

        A name is resolved anew, and each exchange begins at another of its addresses.

        Raises:
            ExchangeError: no connection or no reply within the transport's `exchange_timeout_s`.
        """
        try:
            with trio.fail_after(self._exchange_timeout_s):
                addresses = await resolve(destination)
                start = self._rotation % len(addresses)
                self._rotation += 1
                tried = (addresses[start:] + addresses[:start])[:ADDRESSES_TRIED_MAX]
                for target in tried[:-1]:
                    try:
                        return await self._exchange_with(target, data)
                    except ExchangeError:
                        continue
                return await self._exchange_with(tried[-1], data)
        except trio.TooSlowError:
            raise ExchangeError(f"no reply from {destination} within {self._exchange_timeout_s:g} s") from None

    async def _exchange_with(self, target: Address, data: bytes) -> bytes:
        request = frame(data)
        try:
            with trio.fail_after(CONNECT_DEADLINE_S):
                stream = await trio.open_tcp_stream(target.host, target.port)
        except trio.TooSlowError:
            raise ExchangeError(f"no connection to {target} within {CONNECT_DEADLINE_S:g} s") from None
        except NO_ADDRESS as error:
            raise ExchangeError(f"no connection to {target}: {error}") from error
        try:
            await stream.send_all(request)
            return await read_frame(stream, bytes_max=self._exchange_bytes_max)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ExchangeError(f"the connection to {target} broke") from error
        finally:
            await trio.aclose_forcefully(stream)

    @asynccontextmanager
    async def serve(self, handler: ExchangeHandler) -> AsyncIterator[None]:
        """Answer exchanges with `handler` while the context is open."""

        @trio.lowlevel.enable_ki_protection
        async def answer(stream: trio.SocketStream) -> None:
            await self._answer(stream, handler)

        @trio.lowlevel.enable_ki_protection
        async def accept(listener: trio.SocketListener) -> None:
            await trio.serve_listeners(answer, [listener])

        async with open_plain_nursery() as nursery:
            # A duplicate of the descriptor: serve_listeners closes what it is given, and serving may begin again.
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._tcp.dup()))
            nursery.start_soon(accept, listener)
            yield
            nursery.cancel_scope.cancel()

    async def _answer(self, stream: trio.SocketStream, handler: ExchangeHandler) -> None:
        try:
            source = readable_address(stream.socket.getpeername())
        except OSError:
            await trio.aclose_forcefully(stream)
            return
        if self._answering.total() >= CONNECTIONS_MAX or self._answering[source.host] >= CONNECTIONS_PER_SOURCE_MAX:
            self.counters.connections_refused += 1
            await trio.aclose_forcefully(stream)
            return
        self._answering[source.host] += 1
        try:
            with trio.fail_after(self._exchange_timeout_s):
                with trio.fail_after(REQUEST_DEADLINE_S):
                    request = await read_frame(stream, bytes_max=self._exchange_bytes_max)
                reply = await handler(source, request)
                if reply is not None:
                    await stream.send_all(frame(reply))
        except (ExchangeError, trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
            self.counters.exchanges_broken += 1
        finally:
            self._answering[source.host] -= 1
            self._answering += Counter()  # drops hosts at zero, so that the table is bounded by the connections
            with trio.CancelScope(shield=True, deadline=trio.current_time() + SEND_WAIT_S):
                await stream.aclose()


async def _bind_both(bind: Address) -> tuple[socket.socket, socket.socket]:
    """Bind TCP, then UDP on the same port; with port 0 again until one number is free for both."""
    try:
        host = await bind_host(bind)
        attempts = PORT_ATTEMPTS_MAX if bind.port == 0 else 1
        for attempt in range(1, attempts + 1):
            tcp = bind_socket(host, bind.port, socket.SOCK_STREAM)
            try:
                udp = bind_socket(host, tcp.getsockname()[1], socket.SOCK_DGRAM)
            except OSError:
                tcp.close()
                if attempt == attempts:
                    raise
            else:
                return tcp, udp
    except (OSError, ExchangeError) as error:
        raise cannot_bind(bind, error) from error
    raise AssertionError("the last attempt returns or raises")
