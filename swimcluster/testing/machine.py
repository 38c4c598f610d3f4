"""What the simulator asks of a machine: time and bytes in, bytes and events out.

`swimcluster.swim.Swim` is one; any sans-I/O state machine with these few methods is another. `Machine` is all that one
needs which sends datagrams alone; `ExchangeMachine` adds requests with replies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from swimcluster.address import Address


class Datagram(Protocol):
    """One datagram to send: it may be lost, doubled or overtaken."""

    @property
    def destination(self) -> Address:
        """Where to."""
        ...

    @property
    def data(self) -> bytes:
        """What."""
        ...


class Exchange(Protocol):
    """One request that wants one reply, as over a connection."""

    @property
    def id(self) -> int:
        """The machine's own number for it; comes back with the outcome."""
        ...

    @property
    def destination(self) -> Address:
        """Where to."""
        ...

    @property
    def data(self) -> bytes:
        """The request."""
        ...

    @property
    def timeout_ns(self) -> int:
        """After this long without a reply the exchange has failed."""
        ...


class Machine(Protocol):
    """A state machine without I/O. `now` is int nanoseconds of the node's own clock and never falls."""

    def receive_datagram(self, now: int, source: Any, data: bytes) -> object:
        """Take one datagram."""
        ...

    def advance(self, now: int) -> object:
        """Do what has become due by `now`."""
        ...

    def next_deadline(self) -> int | None:
        """When `advance` wants to be called next; None for never. After `advance(now)` it is later than `now`."""
        ...

    def transmits(self) -> Iterable[Any]:
        """Take what is to be sent: `Datagram`s and `Exchange`s (told apart by a `timeout_ns` attribute)."""
        ...

    def events(self) -> Iterable[Any]:
        """Take what happened since the last call."""
        ...


@runtime_checkable
class ExchangeMachine(Protocol):
    """A machine that also asks and answers exchanges."""

    def exchange_received(self, now: int, source: Any, data: bytes) -> bytes | None:
        """Answer a request; None closes without an answer."""
        ...

    def exchange_replied(self, now: int, id: int, data: bytes) -> object:  # noqa: A002
        """Take the reply to an exchange of this machine."""
        ...

    def exchange_failed(self, now: int, id: int) -> object:  # noqa: A002
        """Hear that an exchange of this machine brought no reply."""
        ...
