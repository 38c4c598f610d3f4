"""A network inside one process: for tests, examples and programs that try the library without sockets.

It delivers at once or after a fixed delay and can cut links by direction. It invents no loss, no reordering and
no duplicates: `swimcluster.testing` is the place for those, where they are seeded.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from swimcluster.address import Address
from swimcluster.errors import ConfigError, ExchangeError
from swimcluster.nursery import open_plain_nursery
from swimcluster.transport import ExchangeHandler

DATAGRAM_QUEUE_MAX = 1024
"""Datagrams waiting for one transport; more are dropped, as a full socket buffer would."""
EPHEMERAL_PORT_FIRST = 49152


class MemoryNetwork:
    """The wires between the transports it makes."""

    def __init__(self, *, delay_s: float = 0.0) -> None:
        """Make a network nobody is on yet.

        Args:
            delay_s: what every datagram, request and reply takes, in seconds.
        """
        self.delay_s = delay_s
        """Seconds every datagram, request and reply takes."""
        self._transports: dict[Address, MemoryTransport] = {}
        self._cuts: set[tuple[Address, Address]] = set()
        self._next_port = EPHEMERAL_PORT_FIRST

    @asynccontextmanager
    async def open_transport(self, address: Address) -> AsyncIterator[MemoryTransport]:
        """Bind a transport at `address` until the context ends; port 0 takes a free one.

        Raises:
            ConfigError: another transport is bound there.
        """
        if address.port == 0:
            address = Address(address.host, self._next_port)
            self._next_port += 1
        if address in self._transports:
            raise ConfigError(f"{address} is in use on this network")
        async with open_plain_nursery() as nursery:
            transport = MemoryTransport(self, address, nursery)
            self._transports[address] = transport
            try:
                yield transport
            finally:
                del self._transports[address]
                nursery.cancel_scope.cancel()

    def cut(self, source: Address, destination: Address) -> None:
        """Lose everything from `source` to `destination`; the other direction stays."""
        self._cuts.add((source, destination))

    def cut_both(self, one: Address, other: Address) -> None:
        """Lose everything between two addresses."""
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        """Mend every cut."""
        self._cuts.clear()

    def is_cut(self, source: Address, destination: Address) -> bool:
        """Whether this direction is cut."""
        return (source, destination) in self._cuts

    def reachable(self, source: Address, destination: Address) -> MemoryTransport | None:
        """Return who listens at `destination`, or None when nobody does or the link is cut."""
        if self.is_cut(source, destination):
            return None
        return self._transports.get(destination)


class MemoryTransport:
    """One end of a `MemoryNetwork`; a `swimcluster.transport.Transport`."""

    def __init__(self, network: MemoryNetwork, address: Address, nursery: trio.Nursery) -> None:
        self._network = network
        self._address = address
        self._nursery = nursery
        self._handler: ExchangeHandler | None = None
        self._inbox, self._arrivals = trio.open_memory_channel[tuple[Address | None, bytes]](DATAGRAM_QUEUE_MAX)

    @property
    def local_address(self) -> Address:
        """Where this end is bound."""
        return self._address

    async def send(self, destination: Address, data: bytes) -> bool:
        """Send one datagram; always True, as nobody can tell whether it arrived."""
        await trio.lowlevel.checkpoint()
        if self._network.delay_s:
            self._nursery.start_soon(self._deliver_later, destination, data)
        else:
            self._deliver(destination, data)
        return True

    async def exchange(self, destination: Address, data: bytes) -> bytes:
        """Send one request and return its reply; waits for ever behind a cut, as a blackholed connection would.

        Raises:
            ExchangeError: nobody listens there, or the other side closed without a reply.
        """
        await trio.sleep(self._network.delay_s)
        if self._network.is_cut(self._address, destination):
            await trio.sleep(math.inf)
        other = self._network.reachable(self._address, destination)
        if other is None:
            raise ExchangeError(f"nobody listens at {destination}")
        reply = await other.answer(self._address, data)
        await trio.sleep(self._network.delay_s)
        if self._network.is_cut(destination, self._address):
            await trio.sleep(math.inf)
        if reply is None:
            raise ExchangeError(f"{destination} closed without a reply")
        return reply

    async def answer(self, source: Address, data: bytes) -> bytes | None:
        """Hand a request from the network to whoever serves here."""
        return None if self._handler is None else await self._handler(source, data)

    def arrive(self, source: Address, data: bytes) -> None:
        """Queue a datagram from the network; lost when the queue is full, as on a real one."""
        with contextlib.suppress(trio.WouldBlock):
            self._inbox.send_nowait((source, data))

    async def receive(self) -> tuple[Address | None, bytes]:
        """Wait for one datagram."""
        return await self._arrivals.receive()

    @asynccontextmanager
    async def serve(self, handler: ExchangeHandler) -> AsyncIterator[None]:
        """Answer exchanges with `handler` while the context is open."""
        self._handler = handler
        try:
            yield
        finally:
            self._handler = None

    def _deliver(self, destination: Address, data: bytes) -> None:
        other = self._network.reachable(self._address, destination)
        if other is not None:
            other.arrive(self._address, data)

    async def _deliver_later(self, destination: Address, data: bytes) -> None:
        await trio.sleep(self._network.delay_s)
        self._deliver(destination, data)
