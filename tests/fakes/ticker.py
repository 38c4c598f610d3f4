"""A machine that knows nothing of membership, for tests of the world that it runs in."""

# ruff: noqa: A002

from __future__ import annotations

from dataclasses import dataclass

from swimcluster.address import Address
from swimcluster.testing import Constant, Network, Node, World
from swimcluster.testing.network import MILLISECOND, SECOND

A, B = Address("10.0.0.1", 1), Address("10.0.0.2", 1)


@dataclass(frozen=True)
class Packet:
    destination: Address
    data: bytes


@dataclass(frozen=True)
class Ask:
    id: int
    destination: Address
    data: bytes
    timeout_ns: int = SECOND


class Ticker:
    """Sends its count to the peer every 10 ms; asks when told to; keeps all it hears with the time on its clock."""

    def __init__(self, peer: Address, now: int, every_ns: int = 10 * MILLISECOND) -> None:
        self.peer, self.due, self.every_ns = peer, now + every_ns, every_ns
        self.count = 0
        self.heard: list[tuple[int, bytes]] = []
        self.sources: list[Address] = []
        self.outcomes: list[tuple[int, int, bytes | None]] = []
        self.failed_sends = 0
        self.ticks: list[int] = []
        self.out: list[object] = []

    def receive_datagram(self, now, source, data):
        self.heard.append((now, data))
        self.sources.append(source)

    def exchange_received(self, now, source, data):
        return b"re:" + data

    def exchange_replied(self, now, id, data):
        self.outcomes.append((now, id, data))

    def exchange_failed(self, now, id):
        self.outcomes.append((now, id, None))

    def send_failed(self, now, destination):
        self.failed_sends += 1

    def ask(self, now, id, timeout_ns=SECOND):
        self.out.append(Ask(id, self.peer, b"q%d" % id, timeout_ns))

    def advance(self, now):
        self.ticks.append(now)
        self.due = now + self.every_ns
        self.count += 1
        self.out.append(Packet(self.peer, b"%d" % self.count))

    def next_deadline(self):
        return self.due

    def transmits(self):
        out, self.out = self.out, []
        return out

    def events(self):
        return []


def pair(network: Network | None = None, seed: int = 0, **world_options) -> tuple[World, Node, Node]:
    world = World(seed=seed, network=network or Network(latency=Constant(MILLISECOND)), **world_options)
    a, b = world.add("a", A), world.add("b", B)
    world.boot(a, lambda node, now: Ticker(B, now))
    world.boot(b, lambda node, now: Ticker(A, now))
    return world, a, b


def numbers(node: Node) -> list[int]:
    return [int(data) for _, data in node.machine.heard]
