"""Membership over the node's own HTTP port: every datagram and every exchange is one POST to `/cluster/swim`.

A `swimcluster.transport.Transport`. Connections are kept alive, so a probe costs one small request; a failed POST closes
its connection and counts as a failed send, so the death of a process is felt at the next packet. Messages carry the
membership's own MACs; nothing is added here. Which host an exchange came from is told on; for a datagram it is not kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from saiserve import limits
from saiserve.peers.connections import Connections, LinkError
from saiserve.peers.messages import SWIM
from swimcluster.address import Address
from swimcluster.errors import ExchangeError, RefusedError
from swimcluster.transport import ExchangeHandler

HEADER = b"x-sai-swim"
DATAGRAM, EXCHANGE = b"datagram", b"exchange"
DATAGRAM_BYTES_MAX = 1_400
"""The membership's own budget; longer ones are none of its datagrams."""
NO_MEMBERSHIP = 404
"""What a node outside any cluster answers; and most programs that are no node."""
NO_MEMBERSHIP_WORDS = "it takes no membership: it is a node without CLUSTER_SECRET, or no node at all"
DATAGRAMS_WAITING_MAX = 1_024
"""Datagrams taken but not yet read by the membership; more are dropped, as UDP would."""


class SwimTransport:
    """Carries a cluster's bytes over HTTP. The node gives it to `open_cluster` and to its `PeerPort`.

    Args:
        local_address: where this node's port is bound, with the real port.
        timeout_s: connect and reply of one POST; the probe's timeout fits.
        exchange_bytes_max: bound on each request and reply, as in the cluster's Config.
    """

    def __init__(
        self,
        local_address: Address,
        connections: Connections,
        *,
        timeout_s: float = 1.0,
        exchange_bytes_max: int = limits.PEER_SWIM_BODY_BYTES_MAX,
    ) -> None:
        self._local_address = local_address
        self._connections = connections
        self._timeout_s = timeout_s
        self._exchange_bytes_max = exchange_bytes_max
        self._arrived, self._waiting = trio.open_memory_channel[bytes](DATAGRAMS_WAITING_MAX)
        self._handler: ExchangeHandler | None = None
        self.dropped = 0
        """Datagrams that found no room, since the start."""

    @property
    def local_address(self) -> Address:
        """Where this transport is bound, with the real port."""
        return self._local_address

    def body_bytes_max(self, kind: bytes) -> int:
        """Longest body of a POST of this kind that is taken; 0 for a kind there is not."""
        return {EXCHANGE: self._exchange_bytes_max, DATAGRAM: DATAGRAM_BYTES_MAX}.get(kind, 0)

    async def send(self, destination: Address, data: bytes) -> bool:
        """Send one datagram. False when it certainly or probably did not arrive: no connection, no reply in time."""
        try:
            with trio.fail_after(self._timeout_s):
                await self._post(destination, DATAGRAM, data)
        except (ExchangeError, trio.TooSlowError):
            return False
        return True

    async def exchange(self, destination: Address, data: bytes) -> bytes:
        """Send one request, return its one reply. Cancel to give up.

        Raises:
            ExchangeError: no connection or no reply.
            RefusedError: no node with a membership listens there.
        """
        reply = await self._post(destination, EXCHANGE, data)
        if reply is None:
            raise ExchangeError(f"{destination} gave no reply")
        return reply

    async def receive(self) -> tuple[Address | None, bytes]:
        """Wait for one datagram; the source is always None."""
        return None, await self._waiting.receive()

    def serve(self, handler: ExchangeHandler) -> AbstractAsyncContextManager[None]:
        """Answer exchanges with `handler` while the context is open."""
        return self._serve(handler)

    @asynccontextmanager
    async def _serve(self, handler: ExchangeHandler) -> AsyncIterator[None]:
        self._handler = handler
        try:
            yield
        finally:
            self._handler = None

    async def serve_http(self, kind: bytes, body: bytes, source: Address | None = None) -> bytes | None:
        """One POST from another node; called by `PeerPort`."""
        if kind == EXCHANGE:
            return await self._handler(source, body) if self._handler is not None else None
        if kind == DATAGRAM and self._handler is not None and len(body) <= DATAGRAM_BYTES_MAX:
            try:
                self._arrived.send_nowait(body)
            except trio.WouldBlock:
                self.dropped += 1
        return None

    async def _post(self, destination: Address, kind: bytes, data: bytes) -> bytes | None:
        try:
            async with self._connections.link(destination) as link:
                head = await link.request("POST", SWIM, [(HEADER, kind)], data)
                body = await link.body(self._exchange_bytes_max)
                if head.status == NO_MEMBERSHIP:
                    raise RefusedError(NO_MEMBERSHIP_WORDS)
                if head.status not in (200, 204):
                    raise ExchangeError(f"{destination} answered {head.status}")
                return body if head.status == 200 else None
        except LinkError as error:
            raise ExchangeError(str(error)) from error
