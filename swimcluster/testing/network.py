"""A network that can be told how to misbehave; `trouble.py` has the words for it.

The network knows nodes by name and addresses by who is bound to them. It decides what becomes of each datagram and
each exchange; the world does the delivering. All chance comes from streams forked per sender, so that one node's
extra packet does not change another's luck.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from swimcluster.address import Address
from swimcluster.testing.randomness import fork
from swimcluster.testing.trouble import LAN, Burst, Constant, Latency, LogNormal, Trouble, Uniform
from swimcluster.testing.virtual_time import MILLISECOND, SECOND

__all__ = [
    "LAN",
    "MILLISECOND",
    "SECOND",
    "Burst",
    "Constant",
    "Latency",
    "LogNormal",
    "Network",
    "Path",
    "Recorded",
    "Trouble",
    "Uniform",
    "flip",
]

RECORDED_MAX = 4096
"""Datagrams, requests and replies kept for later replay, unless told otherwise; the oldest go first."""
RETRANSMIT_NS = 200 * MILLISECOND
"""First retransmission of a lost segment of an exchange; doubles per loss, as a TCP's does."""
RETRANSMITS_MAX = 6
QUEUE_NS = 250 * MILLISECOND
"""How long a datagram may wait before a path of limited bandwidth, as in a router's buffer."""


@dataclass(slots=True)
class Path:
    """The sum of all troubles from one node to another."""

    cut_datagrams: bool = False
    cut_exchanges: bool = False
    loss: float = 0.0
    bursts: list[Burst] = field(default_factory=list)
    bad: list[bool] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_ns: int = 0
    corrupt: float = 0.0
    mtu: int | None = None
    exchange_delay_ns: int = 0
    half_open: float = 0.0
    bytes_per_s: int | None = None
    free_at: int = 0
    """When a path of limited bandwidth has sent all that waits."""
    plain: Latency | None = None
    """The one latency of a path with no other trouble: the quick way through."""

    def add(self, trouble: Trouble) -> None:
        """Lay one more trouble on top."""
        self.cut_datagrams |= trouble.cut_datagrams
        self.cut_exchanges |= trouble.cut_exchanges
        self.loss = 1 - (1 - self.loss) * (1 - trouble.loss)
        self.duplicate = 1 - (1 - self.duplicate) * (1 - trouble.duplicate)
        self.corrupt = 1 - (1 - self.corrupt) * (1 - trouble.corrupt)
        self.half_open = 1 - (1 - self.half_open) * (1 - trouble.half_open)
        self.exchange_delay_ns += trouble.exchange_delay_ns
        if trouble.reorder > self.reorder:
            self.reorder, self.reorder_ns = trouble.reorder, trouble.reorder_ns
        if trouble.burst is not None:
            self.bursts.append(trouble.burst)
            self.bad.append(False)
        if trouble.latency is not None:
            self.latencies.append(trouble.latency)
        if trouble.mtu is not None:
            self.mtu = trouble.mtu if self.mtu is None else min(self.mtu, trouble.mtu)
        if trouble.bytes_per_s is not None:
            rate = self.bytes_per_s
            self.bytes_per_s = trouble.bytes_per_s if rate is None else min(rate, trouble.bytes_per_s)

    def settle(self) -> None:
        """Find out whether the quick way applies."""
        troubled = self.cut_datagrams or self.loss or self.bursts or self.duplicate or self.reorder or self.corrupt
        if not troubled and self.mtu is None and self.bytes_per_s is None and len(self.latencies) == 1:
            self.plain = self.latencies[0]

    def delay(self, rng: random.Random) -> int:
        """One way, at least a nanosecond: an effect never comes at its cause's own time."""
        return max(1, sum(latency.draw(rng) for latency in self.latencies))

    def queue(self, now: int, length: int) -> int | None:
        """How long `length` bytes wait and take on a path of limited bandwidth; None when its buffer is full."""
        if self.bytes_per_s is None:
            return 0
        begin = max(now, self.free_at)
        if begin - now > QUEUE_NS:
            return None
        self.free_at = begin + length * SECOND // self.bytes_per_s
        return self.free_at - now

    def loses(self, rng: random.Random) -> bool:
        """Whether this packet is lost; moves the burst states on."""
        lost = self.loss > 0 and rng.random() < self.loss
        for i, burst in enumerate(self.bursts):
            turn = rng.random()
            self.bad[i] = (turn >= burst.leave) if self.bad[i] else (turn < burst.enter)
            if self.bad[i] and rng.random() < burst.loss:
                lost = True
        return lost


@dataclass(frozen=True, slots=True)
class Recorded:
    """One message that was once sent, for replay."""

    source: Address
    destination: Address
    data: bytes
    kind: str = "datagram"
    """datagram, request or reply."""


class Network:
    """Who is bound where, and what lies between them."""

    def __init__(
        self,
        *,
        seed: int = 0,
        latency: Latency = LAN,
        loss: float = 0.0,
        record: bool = False,
        recorded_max: int = RECORDED_MAX,
    ) -> None:
        self._seed = seed
        self._base = Trouble(latency=latency, loss=loss)
        self._troubles: dict[int, Trouble] = {}
        self._next_trouble = 0
        self._paths: dict[str, dict[str, Path]] = {}
        self._bound: dict[Address, str] = {}
        self.bindings = 0
        """How often an address changed hands; while it stays the same, a holder once looked up is right."""
        self._luck: dict[str, random.Random] = {}
        self._delays: dict[str, random.Random] = {}
        self.recorded: deque[Recorded] | None = deque(maxlen=recorded_max) if record else None
        self.counts: dict[str, int] = dict.fromkeys(
            (
                "sent",
                "lost",
                "cut",
                "duplicated",
                "reordered",
                "corrupted",
                "too_long",
                "crowded_out",
                "unbound",
                "replayed",
            ),
            0,
        )

    def record(self, source: Address, destination: Address, data: bytes, kind: str) -> None:
        """Keep a message that was sent, if this network keeps any."""
        if self.recorded is not None:
            self.recorded.append(Recorded(source, destination, data, kind))

    def bind(self, address: Address, name: str) -> None:
        """Let packets to `address` go to `name`; the last one bound has it."""
        self.bindings += 1
        self._bound[address] = name

    def unbind(self, address: Address, name: str) -> None:
        """Give `address` up, unless somebody else has it by now."""
        if self._bound.get(address) == name:
            self.bindings += 1
            del self._bound[address]

    def holder(self, address: Address) -> str | None:
        """The node bound to `address`."""
        return self._bound.get(address)

    def trouble(self, trouble: Trouble) -> int:
        """Lay `trouble` on the network; the number returned takes it away again."""
        self._next_trouble += 1
        self._troubles[self._next_trouble] = trouble
        self._paths.clear()
        return self._next_trouble

    def mend(self, number: int | None = None) -> None:
        """Take one trouble away, or all of them. The base latency and loss stay."""
        if number is None:
            self._troubles.clear()
        else:
            self._troubles.pop(number, None)
        self._paths.clear()

    def set_base(self, *, latency: Latency | None = None, loss: float | None = None) -> None:
        """Change what holds everywhere."""
        self._base = Trouble(
            latency=self._base.latency if latency is None else latency, loss=self._base.loss if loss is None else loss
        )
        self._paths.clear()

    def cut(self, sources: Iterable[str] | None, destinations: Iterable[str] | None, *, exchanges: bool = True) -> int:
        """Cut one way, from `sources` to `destinations` (None: everybody); exchanges may be let through."""
        return self.trouble(
            Trouble(
                sources=None if sources is None else frozenset(sources),
                destinations=None if destinations is None else frozenset(destinations),
                cut_datagrams=True,
                cut_exchanges=exchanges,
            )
        )

    def path(self, source: str, destination: str) -> Path:
        """What lies between two nodes now, one way."""
        paths = self._paths.get(source)
        if paths is None:
            paths = self._paths[source] = {}
        path = paths.get(destination)
        if path is None:
            path = paths[destination] = Path()
            path.add(self._base)
            for trouble in self._troubles.values():
                if trouble.covers(source, destination):
                    path.add(trouble)
            path.settle()
        return path

    def delays(self, source: str) -> random.Random:
        """The stream that delays of packets from `source` are drawn from."""
        stream = self._delays.get(source)
        if stream is None:
            stream = self._delays[source] = fork(self._seed, "latency", source)
        return stream

    def luck(self, source: str) -> random.Random:
        """The stream that loss and damage of packets from `source` are drawn from."""
        stream = self._luck.get(source)
        if stream is None:
            stream = self._luck[source] = fork(self._seed, "loss", source)
        return stream

    def datagram(self, source: str, destination: str, data: bytes, now: int = 0) -> list[tuple[int, bytes]]:
        """What arrives of one datagram sent at `now`: (delay, bytes) per copy; empty when it is lost."""
        self.counts["sent"] += 1
        path = self.path(source, destination)
        if path.plain is not None:
            return [(max(1, path.plain.draw(self.delays(source))), data)]
        if path.cut_datagrams:
            self.counts["cut"] += 1
            return []
        if path.mtu is not None and len(data) > path.mtu:
            self.counts["too_long"] += 1
            return []
        waiting = path.queue(now, len(data))
        if waiting is None:
            self.counts["crowded_out"] += 1
            return []
        luck, delays = self.luck(source), self.delays(source)
        arrivals = []
        copies = 2 if path.duplicate and luck.random() < path.duplicate else 1
        self.counts["duplicated"] += copies - 1
        for _ in range(copies):
            if path.loses(luck):
                self.counts["lost"] += 1
                continue
            delay, copy = waiting + path.delay(delays), data
            if path.reorder and luck.random() < path.reorder:
                self.counts["reordered"] += 1
                delay += int(path.reorder_ns * (0.5 + luck.random()))
            if path.corrupt and luck.random() < path.corrupt:
                self.counts["corrupted"] += 1
                copy = flip(copy, luck)
            arrivals.append((delay, copy))
        return arrivals

    def segment(self, source: str, destination: str) -> int | None:
        """Delay of one part of an exchange, retransmissions included; None when it never gets there."""
        path = self.path(source, destination)
        if path.cut_exchanges:
            self.counts["cut"] += 1
            return None
        delay, wait, luck = path.delay(self.delays(source)), RETRANSMIT_NS, self.luck(source)
        for _ in range(RETRANSMITS_MAX):
            if not ((path.loss or path.bursts) and path.loses(luck)):
                return delay
            delay, wait = delay + wait, wait * 2
        return None


def flip(data: bytes, rng: random.Random) -> bytes:
    """Flip one to three bits."""
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        if damaged:
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)
