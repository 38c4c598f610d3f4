"""Datagrams over UDP, IPv4 or IPv6 or both: the half of a transport that needs no connection.

No error of the socket ends the receive loop; a closed socket alone does.
"""

from __future__ import annotations

import errno
import functools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from swimcluster.address import Address
from swimcluster.errors import ConfigError, ExchangeError
from swimcluster.transport.resolve import ShortMemory, resolve

DATAGRAM_BYTES_MAX = 65_535
"""What one receive takes; the protocol's own budget is far below and checked by the core."""
RECEIVE_BUFFER_BYTES = 2 * 1024 * 1024
"""Asked of the kernel, so that a burst survives a pause of this process; it may grant less."""
SEND_WAIT_S = 0.1
"""How long a datagram waits for room in the kernel before it counts as a failed send."""
ERROR_PAUSE_S = 0.01
"""Pause after a receive error, so that a lasting one costs no CPU."""
LISTEN_BACKLOG = 64
SOURCES_MAX = 4096
"""Sources whose address is remembered as written."""
IPV4_MAPPED = "::ffff:"
NO_ADDRESS = (OSError, UnicodeError, OverflowError)
"""What sockets raise for an address that cannot be: others choose what they advertise, a zone such as `::1%a..b` too."""


@dataclass(slots=True)
class UdpCounters:
    """What went wrong here and was survived; `swimcluster.prometheus_text` shows it."""

    receive_errors: int = 0
    """Socket errors while receiving datagrams."""
    send_errors: int = 0
    """Datagrams the local system refused to send."""
    connections_refused: int = 0
    """Incoming exchanges over a connection limit."""
    exchanges_broken: int = 0
    """Incoming exchanges that ended before their reply was out."""


@asynccontextmanager
async def open_udp_datagrams(bind: Address) -> AsyncIterator[UdpDatagrams]:
    """Bind a UDP socket at `bind` until the context ends, for a transport whose exchanges go another way.

    Args:
        bind: an empty host or `::` listens on IPv6 and IPv4 alike; port 0 takes a free one.

    Raises:
        ConfigError: the address cannot be bound; the message says why.
    """
    try:
        sock = bind_socket(await bind_host(bind), bind.port, socket.SOCK_DGRAM)
    except (OSError, ExchangeError) as error:
        raise cannot_bind(bind, error) from error
    try:
        yield UdpDatagrams(sock)
    finally:
        close_socket(sock)


class UdpDatagrams:
    """Sends and receives datagrams on one bound, non-blocking UDP socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._is_ipv6 = sock.family == socket.AF_INET6
        self._memory = ShortMemory()
        self._buffer = memoryview(bytearray(DATAGRAM_BYTES_MAX))
        self._may_hold_more = True
        self._has_failed = False
        self.counters = UdpCounters()

    @property
    def local_address(self) -> Address:
        """Where the socket is bound, with the real port."""
        host, port = self._sock.getsockname()[:2]
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
                await trio.lowlevel.wait_writable(self._sock)
                sent = self._send_at_once(target, data)
        return bool(sent)

    def _send_at_once(self, target: Address, data: bytes) -> bool | None:
        try:
            self._sock.sendto(data, socket_address(target.host, target.port, is_ipv6=self._is_ipv6))
        except BlockingIOError:
            return None
        except NO_ADDRESS:
            self.counters.send_errors += 1
            return False
        return True

    async def receive(self) -> tuple[Address | None, bytes]:
        """Wait for one datagram; socket errors are counted and survived.

        Raises:
            trio.ClosedResourceError: the socket was closed.
        """
        return (await self.receive_some(1))[0]

    async def receive_some(self, most: int) -> list[tuple[Address | None, bytes]]:
        """Wait for a datagram; returns it and those that wait behind it, at most `most`.

        Raises:
            trio.ClosedResourceError: the socket was closed.
        """
        while True:
            if self._may_hold_more:
                await trio.lowlevel.checkpoint()  # a flood must leave room for other tasks
            elif self._sock.fileno() >= 0:
                await trio.lowlevel.wait_readable(self._sock)
            taken = self._take(most)
            if taken:
                return taken
            if self._has_failed:
                await trio.sleep(ERROR_PAUSE_S)

    def _take(self, most: int) -> list[tuple[Address | None, bytes]]:
        taken: list[tuple[Address | None, bytes]] = []
        self._may_hold_more, self._has_failed = True, False
        try:
            while len(taken) < most:
                size, source = self._sock.recvfrom_into(self._buffer)
                taken.append((readable_address(source), bytes(self._buffer[:size])))
        except BlockingIOError:
            self._may_hold_more = False
        except OSError as error:
            if error.errno == errno.EBADF:
                raise trio.ClosedResourceError from error
            self.counters.receive_errors += 1
            self._has_failed = True
        return taken


@functools.lru_cache(maxsize=SOURCES_MAX)
def readable_address(source: tuple[str | int, ...]) -> Address:
    """Write a socket's address as users do: an IPv4 address seen through an IPv6 socket is an IPv4 address."""
    host, port = str(source[0]), int(source[1])
    return Address(host.removeprefix(IPV4_MAPPED) if "." in host else host, port)


def socket_address(host: str, port: int, *, is_ipv6: bool) -> tuple[str, int] | tuple[str, int, int, int]:
    """Return a literal as a socket takes it: Python passes over a zone in the text, so its number stands beside it.

    Raises:
        OSError: no interface has the zone's name.
    """
    if not is_ipv6:
        return host, port
    if ":" not in host:
        return IPV4_MAPPED + host, port
    literal, percent, zone = host.partition("%")
    if not percent:
        return host, port
    return literal, port, 0, int(zone) if zone.isdecimal() else socket.if_nametoindex(zone)


async def bind_host(bind: Address) -> str:
    """Return the literal to bind for a host as configured: every interface for an empty one.

    Raises:
        ExchangeError: a name that cannot be resolved.
    """
    if not bind.host:
        return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - the caller asked for every interface
    return (await resolve(bind))[0].host


def bind_socket(host: str, port: int, kind: socket.SocketKind) -> socket.socket:
    """Return a non-blocking socket bound to a literal; `::` takes IPv4 as well, a TCP socket listens.

    Raises:
        OSError: it cannot be bound.
    """
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
        sock.bind(socket_address(host, port, is_ipv6=family == socket.AF_INET6))
        if kind == socket.SOCK_STREAM:
            sock.listen(LISTEN_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def close_socket(sock: socket.socket) -> None:
    """Close a socket and wake the tasks that wait for it."""
    trio.lowlevel.notify_closing(sock)
    sock.close()


def cannot_bind(bind: Address, error: OSError | ExchangeError) -> ConfigError:
    """Return the error that tells a user which address could not be bound and why."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return ConfigError(f"{bind} cannot be bound: {reason}")
