"""One simulated process: its machine, its clock, its socket buffers, its disk, and how well it feels."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from swimcluster.address import Address
from swimcluster.testing.machine import Machine

INBOX_MAX = 2048
"""Inputs a process that does not read can hold, as a socket buffer does; later ones are dropped and counted."""
PPM = 1_000_000


class Input(NamedTuple):
    """Something that waits to be read by a process."""

    kind: str
    """datagram, request, reply or failure."""
    source: Address | None
    data: bytes
    id: int = 0
    """Of the exchange, for replies and failures."""
    caller: tuple[Node, int, int] | None = None
    """(node, life, exchange id) that waits for the answer to a request."""


class Node:
    """A named process in the world. `machine` is None while it does not run."""

    __slots__ = (
        "address",
        "boot",
        "busy_until",
        "clock_offset",
        "clock_ppm",
        "dials",
        "disk",
        "disk_full",
        "held",
        "inbox",
        "index",
        "life",
        "machine",
        "name",
        "outbox",
        "overflowed",
        "owed",
        "paused",
        "received_bytes",
        "received_datagrams",
        "send_fails",
        "sent_bytes",
        "sent_datagrams",
        "sent_exchanges",
        "service_ns",
        "wake_at",
    )

    def __init__(self, name: str, index: int, address: Address, clock_offset: int = 0) -> None:
        self.name = name
        self.index = index
        self.address = address
        self.machine: Machine | None = None
        self.boot: Any = None
        """What makes its machine; kept for restarts."""
        self.life = 0
        """How often it was started; what belongs to an earlier life is void."""
        self.clock_offset = clock_offset
        self.clock_ppm = 0
        self.inbox: deque[Input] = deque()
        self.outbox: deque[Any] = deque()
        self.dials: set[int] = set()
        """Exchanges under way."""
        self.owed: dict[int, Input] = {}
        """Requests that this node's application has not answered yet, by the machine's number for them."""
        self.paused = False
        """Stopped: nothing is read, no timer runs."""
        self.held = False
        """Input and output wait, timers run (Lifeguard's anomaly)."""
        self.service_ns = 0
        """Time that each input costs: a slow processor."""
        self.busy_until = 0
        self.send_fails = False
        """Every local send is refused by the operating system."""
        self.disk: dict[str, bytes] = {}
        self.disk_full = False
        self.wake_at: int | None = None
        self.sent_datagrams = self.sent_bytes = self.sent_exchanges = 0
        self.received_datagrams = self.received_bytes = self.overflowed = 0

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.address} life {self.life}>"

    @property
    def running(self) -> bool:
        """Whether there is a process, paused or not."""
        return self.machine is not None

    def local(self, now: int) -> int:
        """World time on this node's own clock."""
        return self.clock_offset + now + (now * self.clock_ppm // PPM if self.clock_ppm else 0)

    def world(self, local: int) -> int:
        """The first world time at which this node's clock shows `local`."""
        elapsed = local - self.clock_offset
        return elapsed if not self.clock_ppm else -(-elapsed * PPM // (PPM + self.clock_ppm))

    def write(self, key: str, value: bytes) -> bool:
        """Write to the disk; False when it is full, and then the old value stays."""
        if self.disk_full:
            return False
        self.disk[key] = value
        return True
