"""Put your own state machine into the simulator: forty lines of heartbeat, a lossy network, a cut, a shrunk fault list.

The machine knows nothing of swimcluster. It takes time and bytes and gives bytes and events, and that is all the
simulator asks of it (`swimcluster.testing.Machine`).

Run: python examples/06_simulate_your_own.py
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from swimcluster.address import Address
from swimcluster.testing import Crash, Fault, Network, Node, Partition, Pause, World, describe, play, shrink
from swimcluster.testing.network import MILLISECOND, SECOND

BEAT_NS = 100 * MILLISECOND
SILENT_NS = 350 * MILLISECOND


@dataclass(frozen=True)
class Packet:
    destination: Address
    data: bytes


@dataclass(frozen=True)
class Leading:
    """This node takes itself for the leader from now on, or does so no more."""

    yes: bool


class Heartbeat:
    """Beats to everybody; leads while no smaller name has been heard lately. (Two may lead at once: see below.)"""

    def __init__(self, name: str, peers: list[Address], now: int) -> None:
        self.name, self.peers = name, peers
        self.heard: dict[str, int] = {}
        self.due = now
        self.leading = False
        self.out: list[Packet] = []
        self.happened: list[Leading] = []

    def receive_datagram(self, now: int, source: object, data: bytes) -> None:
        self.heard[data.decode()] = now

    def advance(self, now: int) -> None:
        self.due = now + BEAT_NS
        self.out += [Packet(peer, self.name.encode()) for peer in self.peers]
        leading = not any(name < self.name and now - at < SILENT_NS for name, at in self.heard.items())
        if leading != self.leading:
            self.leading = leading
            self.happened.append(Leading(leading))

    def next_deadline(self) -> int:
        return self.due

    def transmits(self) -> list[Packet]:
        out, self.out = self.out, []
        return out

    def events(self) -> list[Leading]:
        happened, self.happened = self.happened, []
        return happened


NAMES = ["ann", "bob", "cy"]
ADDRESSES = {name: Address(f"10.0.0.{i + 1}", 7000) for i, name in enumerate(NAMES)}


def boot(node: Node, now: int) -> Heartbeat:
    return Heartbeat(node.name, [ADDRESSES[name] for name in NAMES if name != node.name], now)


def two_lead_for(schedule: tuple[Fault, ...], *, longer_than_s: float) -> bool:
    """Whether, once everything has settled, two nodes lead at the same time for longer than given."""
    world = World(seed=1, network=Network(seed=1, loss=0.02))
    for name in NAMES:
        world.boot(world.add(name, ADDRESSES[name]), boot)
    play(world, schedule)
    together = longest = 0
    for _ in range(200):
        world.run_for(0.05)
        machines = [node.machine for node in world.nodes.values()]
        leaders = sum(isinstance(machine, Heartbeat) and machine.leading for machine in machines)
        together = together + 1 if leaders > 1 and world.now > SECOND else 0
        longest = max(longest, together)
    return longest * 0.05 > longer_than_s


def main() -> None:
    schedule: tuple[Fault, ...] = (
        Crash(at_ns=2 * SECOND, for_ns=SECOND, member="bob"),
        Pause(at_ns=3 * SECOND, for_ns=200 * MILLISECOND, member="cy"),
        Partition(at_ns=4 * SECOND, for_ns=3 * SECOND, members=frozenset({"ann", "bob"})),
        Crash(at_ns=8 * SECOND, for_ns=SECOND, member="ann"),
    )
    fails = partial(two_lead_for, longer_than_s=0.6)
    print(f"two leaders under {len(schedule)} faults: {fails(schedule)}")
    print("the smallest list of faults that still does it:")
    for fault in shrink(schedule, fails):
        print("  ", describe(fault))


if __name__ == "__main__":
    main()
