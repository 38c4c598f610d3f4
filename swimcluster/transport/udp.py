"""Datagrams over UDP and exchanges over TCP, both on one port number, IPv4 or IPv6 or both.

Each exchange is one TCP connection: one length-prefixed request, one length-prefixed reply. No error of a socket
ends the receive loop; a closed socket alone does. Limits stand beside their reasons below.
"""

from __future__ import annotations

import errno
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from swimcluster.address import Address
from swimcluster.errors import ConfigError, ExchangeError
from swimcluster.nursery import open_plain_nursery
from swimcluster.transport import ExchangeHandler
from swimcluster.transport.framing import frame, read_frame
from swimcluster.transport.resolve import ShortMemory, resolve

DATAGRAM_BYTES_MAX = 65_535
"""What one receive takes; the protocol's own budget is far below and checked by the core."""
RECEIVE_BUFFER_BYTES = 2 * 1024 * 1024
"""Asked of the kernel, so that a burst survives a pause of this process; it may grant less."""
EXCHANGE_BYTES_MAX = 1024 * 1024
"""Default bound on a request or a reply."""
CONNECTIONS_MAX = 64
"""Exchanges answered at once; more are closed at once and counted."""
CONNECTIONS_PER_SOURCE_MAX = 16
"""Of those, from one host: one broken peer leaves room for the others."""
REQUEST_DEADLINE_S = 5.0
"""A connected peer has this long to send its whole request."""
EXCHANGE_DEADLINE_S = 10.0
"""Longest life of an exchange on either side, whatever the caller allows."""
CONNECT_DEADLINE_S = 3.0
"""Longest wait for one of several addresses of a name before the next is tried."""
ADDRESSES_TRIED_MAX = 4
"""Addresses of one name tried in one exchange; the next exchange starts at the one after the first."""
SEND_WAIT_S = 0.1
"""How long a datagram waits for room in the kernel before it counts as a failed send."""
ERROR_PAUSE_S = 0.01
"""Pause after a receive error, so that a lasting one costs no CPU."""
PORT_ATTEMPTS_MAX = 32
"""Ephemeral ports tried until TCP and UDP are both free on one number."""

IPV4_MAPPED = "::ffff:"


@dataclass(slots=True)
class UdpCounters:
    """What went wrong here and was survived; for `Cluster.statistics()`."""

    receive_errors: int = 0
    """Socket errors while receiving datagrams."""
    send_errors: int = 0
    """Datagrams the local system refused to send."""
    connections_refused: int = 0
    """Incoming exchanges over a connection limit."""
    exchanges_broken: int = 0
    """Incoming exchanges that ended before their reply was out."""


@asynccontextmanager
async def open_udp_transport(
    bind: Address, *, exchange_bytes_max: int = EXCHANGE_BYTES_MAX
) -> AsyncIterator[UdpTransport]:
    """Bind UDP and TCP at `bind` until the context ends.

    Args:
        bind: an empty host or `::` listens on IPv6 and IPv4 alike; port 0 takes one that is free for both.
        exchange_bytes_max: bound on each request and reply, in bytes.

    Raises:
        ConfigError: the address cannot be bound; the message says why.
    """
    tcp, udp = await _bind_both(bind)
    try:
        yield UdpTransport(tcp, udp, exchange_bytes_max=exchange_bytes_max)
    finally:
        for sock in (udp, tcp):
            trio.lowlevel.notify_closing(sock)
            sock.close()


class UdpTransport:
    """UDP and TCP on one port; a `swimcluster.transport.Transport`. Made by `open_udp_transport`."""

    def __init__(self, tcp: socket.socket, udp: socket.socket, *, exchange_bytes_max: int) -> None:
        self._tcp = tcp
        self._udp = udp
        self._exchange_bytes_max = exchange_bytes_max
        self._memory = ShortMemory()
        self._rotation = 0
        self._answering: Counter[str] = Counter()
        self.counters = UdpCounters()

    @property
    def local_address(self) -> Address:
        """Where both sockets are bound, with the real port."""
        host, port = self._udp.getsockname()[:2]
        return Address(host, port)

    def send_nowait(self, destination: Address, data: bytes) -> bool | None:
        """Send one datagram if that needs no waiting; None when it does (a name to resolve, a full buffer)."""
        known = self._memory.recall(destination)
        return None if known is None else self._send_at_once(known[0], data)

    async def send(self, destination: Address, data: bytes) -> bool:
        """Send one datagram. False when the name is unknown or the local system refused it."""
        try:
            target = (await self._memory.resolve(destination))[0]
        except ExchangeError:
            self.counters.send_errors += 1
            return False
        await trio.lowlevel.checkpoint()
        sent = self._send_at_once(target, data)
        with trio.move_on_after(SEND_WAIT_S):
            while sent is None:
                await trio.lowlevel.wait_writable(self._udp)
                sent = self._send_at_once(target, data)
        return bool(sent)

    def _send_at_once(self, target: Address, data: bytes) -> bool | None:
        host = target.host
        if self._udp.family == socket.AF_INET6 and ":" not in host:
            host = IPV4_MAPPED + host
        try:
            self._udp.sendto(data, (host, target.port))
        except BlockingIOError:
            return None
        except OSError:
            self.counters.send_errors += 1
            return False
        return True

    async def receive(self) -> tuple[Address | None, bytes]:
        """Wait for one datagram; socket errors are counted and survived.

        Raises:
            trio.ClosedResourceError: the transport was closed.
        """
        while True:
            try:
                data, source = self._udp.recvfrom(DATAGRAM_BYTES_MAX)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._udp)
                continue
            except OSError as error:
                if error.errno == errno.EBADF:
                    raise trio.ClosedResourceError from error
                self.counters.receive_errors += 1
                await trio.sleep(ERROR_PAUSE_S)
                continue
            await trio.lowlevel.checkpoint()
            return _readable(source), data

    async def exchange(self, destination: Address, data: bytes) -> bytes:
        """Send one request over a connection of its own and return the reply.

        A name is resolved anew, and each exchange begins at another of its addresses.

        Raises:
            ExchangeError: no connection or no reply within `EXCHANGE_DEADLINE_S`.
        """
        try:
            with trio.fail_after(EXCHANGE_DEADLINE_S):
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
            raise ExchangeError(f"no reply from {destination} within {EXCHANGE_DEADLINE_S:g} s") from None

    async def _exchange_with(self, target: Address, data: bytes) -> bytes:
        request = frame(data)
        try:
            with trio.fail_after(CONNECT_DEADLINE_S):
                stream = await trio.open_tcp_stream(target.host, target.port)
        except trio.TooSlowError:
            raise ExchangeError(f"no connection to {target} within {CONNECT_DEADLINE_S:g} s") from None
        except OSError as error:
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

        async def answer(stream: trio.SocketStream) -> None:
            await self._answer(stream, handler)

        async with open_plain_nursery() as nursery:
            # A duplicate of the descriptor: serve_listeners closes what it is given, and serving may begin again.
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._tcp.dup()))
            nursery.start_soon(trio.serve_listeners, answer, [listener])
            yield
            nursery.cancel_scope.cancel()

    async def _answer(self, stream: trio.SocketStream, handler: ExchangeHandler) -> None:
        try:
            source = _readable(stream.socket.getpeername())
        except OSError:
            await trio.aclose_forcefully(stream)
            return
        if self._answering.total() >= CONNECTIONS_MAX or self._answering[source.host] >= CONNECTIONS_PER_SOURCE_MAX:
            self.counters.connections_refused += 1
            await trio.aclose_forcefully(stream)
            return
        self._answering[source.host] += 1
        try:
            with trio.fail_after(EXCHANGE_DEADLINE_S):
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


def _readable(source: tuple[str | int, ...]) -> Address:
    """Write a socket's address as users do: an IPv4 address seen through an IPv6 socket is an IPv4 address."""
    host, port = str(source[0]), int(source[1])
    return Address(host.removeprefix(IPV4_MAPPED) if "." in host else host, port)


async def _bind_both(bind: Address) -> tuple[socket.socket, socket.socket]:
    """Bind TCP, then UDP on the same port; with port 0 again until one number is free for both."""
    try:
        host = await _bind_host(bind)
        attempts = PORT_ATTEMPTS_MAX if bind.port == 0 else 1
        for attempt in range(1, attempts + 1):
            tcp = _bind_socket(host, bind.port, socket.SOCK_STREAM)
            try:
                udp = _bind_socket(host, tcp.getsockname()[1], socket.SOCK_DGRAM)
            except OSError:
                tcp.close()
                if attempt == attempts:
                    raise
            else:
                return tcp, udp
    except OSError as error:
        raise ConfigError(f"{bind} cannot be bound: {error.strerror or error}") from error
    except ExchangeError as error:
        raise ConfigError(f"{bind} cannot be bound: {error}") from error
    raise AssertionError("the last attempt returns or raises")


async def _bind_host(bind: Address) -> str:
    if not bind.host:
        return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - the caller asked for every interface
    return (await resolve(bind))[0].host


def _bind_socket(host: str, port: int, kind: socket.SocketKind) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, kind)
    try:
        sock.setblocking(False)
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        sock.bind((host, port))
        if kind == socket.SOCK_STREAM:
            sock.listen(CONNECTIONS_MAX)
    except BaseException:
        sock.close()
        raise
    return sock
