"""What carries a cluster's bytes: datagrams that may vanish, and exchanges of one request and one reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from swimcluster.address import Address

ExchangeHandler = Callable[[Address | None, bytes], Awaitable[bytes | None]]
"""Takes (source if known, request) and returns the reply, or None to close without one."""


class Transport(Protocol):
    """A carrier of datagrams and exchanges. Implementations hold no protocol decision and raise only ExchangeError.

    Datagram size is bounded by the cluster's budget, exchange size by `Config.exchange_bytes_max`.
    """

    @property
    def local_address(self) -> Address:
        """Where this transport is bound, with the real port."""
        ...

    async def send(self, destination: Address, data: bytes) -> bool:
        """Send one datagram. False when the local send failed; a lost datagram is still True."""
        ...

    async def exchange(self, destination: Address, data: bytes) -> bytes:
        """Send one request, return its one reply. Cancel to give up.

        Raises:
            ExchangeError: no connection or no reply; nothing is known of the other side's state.
            RefusedError: who answers there is no member, which not every transport can tell from silence.
        """
        ...

    async def receive(self) -> tuple[Address | None, bytes]:
        """Wait for one datagram; the source is None where the carrier cannot tell it."""
        ...

    def serve(self, handler: ExchangeHandler) -> AbstractAsyncContextManager[None]:
        """Answer exchanges with `handler` while the context is open."""
        ...
