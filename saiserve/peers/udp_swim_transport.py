"""Membership with datagrams over UDP and exchanges over the node's HTTP port, for `CLUSTER_TRANSPORT=udp`.

Both use the same port number, so that one advertised address serves; the operator opens it for UDP too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from saiserve.peers.connections import Connections
from saiserve.peers.swim_transport import SwimTransport
from swimcluster.address import Address
from swimcluster.transport.udp_datagrams import UdpDatagrams, open_udp_datagrams


class UdpSwimTransport(SwimTransport):
    """A `SwimTransport` whose datagrams take the short way. Made by `open_udp_swim_transport`."""

    def __init__(self, local_address: Address, connections: Connections, datagrams: UdpDatagrams) -> None:
        super().__init__(local_address, connections)
        self._datagrams = datagrams

    def send_nowait(self, destination: Address, data: bytes) -> bool | None:
        """Send one datagram if that needs no waiting; None when it does."""
        return self._datagrams.send_nowait(destination, data)

    async def send(self, destination: Address, data: bytes) -> bool:
        """Send one datagram. False when the name is unknown or the local system refused it."""
        return await self._datagrams.send(destination, data)

    async def receive(self) -> tuple[Address | None, bytes]:
        """Wait for one datagram."""
        return await self._datagrams.receive()

    async def receive_some(self, most: int) -> list[tuple[Address | None, bytes]]:
        """Wait for a datagram; returns it and those that wait behind it, at most `most`."""
        return await self._datagrams.receive_some(most)


@asynccontextmanager
async def open_udp_swim_transport(
    bind: Address, local_address: Address, connections: Connections
) -> AsyncIterator[UdpSwimTransport]:
    """Bind UDP at `bind` until the context ends; others reach this node at `local_address`.

    Raises:
        ConfigError: the address cannot be bound.
    """
    async with open_udp_datagrams(bind) as datagrams:
        yield UdpSwimTransport(local_address, connections, datagrams)
