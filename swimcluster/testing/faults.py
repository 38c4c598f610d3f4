"""What can happen to processes and networks, as plain data that a schedule lists, a search draws and a shrinker drops.

Each fault says when it begins and how long it lasts and carries its own mending, so any subset of a schedule is a
schedule. Times are nanoseconds of the world. Faults that know what a membership is are in `membership_faults`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from swimcluster.address import Address
from swimcluster.testing.network import MILLISECOND, SECOND, Trouble
from swimcluster.testing.randomness import fork
from swimcluster.testing.world import World

Undo = Callable[[], None]


class Fault(Protocol):
    """Something that goes wrong at `at_ns` for `for_ns`."""

    @property
    def at_ns(self) -> int:
        """When it begins."""
        ...

    @property
    def for_ns(self) -> int:
        """How long it lasts; 0 for one that is over at once."""
        ...

    def start(self, world: World) -> Undo | None:
        """Do it; what is returned mends it."""
        ...


Schedule = tuple[Fault, ...]


def play(world: World, schedule: Iterable[Fault]) -> int:
    """Put a schedule on the world's agenda; returns when the last fault will have ended."""
    end = world.now
    for fault in schedule:
        world.at(fault.at_ns, _begin, world, fault)
        end = max(end, fault.at_ns + fault.for_ns)
    return end


def _begin(world: World, fault: Fault) -> None:
    world.note(f"begin {describe(fault)}")
    undo = fault.start(world)
    if undo is not None:
        world.after(fault.for_ns, _end, world, fault, undo)


def _end(world: World, fault: Fault, undo: Undo) -> None:
    world.note(f"end {type(fault).__name__}")
    undo()


def describe(fault: Fault) -> str:
    """One line: what, when, how long, to whom."""
    fields = getattr(fault, "__dataclass_fields__", {})
    parts = []
    for name in fields:
        value = getattr(fault, name)
        if name.endswith("_ns"):
            parts.append(f"{name[:-3]}={value / SECOND:g}s")
        elif isinstance(value, frozenset):
            parts.append(f"{name}={','.join(sorted(value))}")
        else:
            parts.append(f"{name}={value}")
    return f"{type(fault).__name__}({' '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Crash:
    """A process dies and, after `for_ns`, is started again (`restarts=False`: never)."""

    at_ns: int
    for_ns: int
    member: str
    keep_disk: bool = True
    host_down: bool = True
    """The machine is off: connections time out. Otherwise they are refused."""
    new_address: Address | None = None
    restarts: bool = True

    def start(self, world: World) -> Undo | None:
        """Kill it."""
        node = world.nodes[self.member]
        if not node.running:
            return None
        world.stop(node, host_down=self.host_down)

        def restart() -> None:
            if node.running or not self.restarts:
                return
            if not self.keep_disk:
                node.disk.clear()
            if self.new_address is not None:
                world.move(node, self.new_address)
            world.boot(node)

        return restart


@dataclass(frozen=True, slots=True)
class Pause:
    """A process is stopped (SIGSTOP, a long collection); its buffers fill and are read in a burst."""

    at_ns: int
    for_ns: int
    member: str

    def start(self, world: World) -> Undo | None:
        """Stop it."""
        node = world.nodes[self.member]
        if not node.running:
            return None
        world.pause(node)
        return lambda: world.resume(node) if node.paused else None


@dataclass(frozen=True, slots=True)
class Suspend:
    """A host sleeps: its process is stopped and nothing that arrives is kept."""

    at_ns: int
    for_ns: int
    member: str

    def start(self, world: World) -> Undo | None:
        """Put it to sleep."""
        node = world.nodes[self.member]
        if not node.running:
            return None
        world.pause(node)
        return lambda: world.resume(node, lose_input=True) if node.paused else None


@dataclass(frozen=True, slots=True)
class Hold:
    """Input and output are blocked while timers run, then all goes at once (Lifeguard's anomaly)."""

    at_ns: int
    for_ns: int
    member: str

    def start(self, world: World) -> Undo | None:
        """Block it."""
        node = world.nodes[self.member]
        if not node.running:
            return None
        world.hold(node)
        return lambda: world.release(node)


@dataclass(frozen=True, slots=True)
class SlowCpu:
    """Each input costs `service_ns` of processor time."""

    at_ns: int
    for_ns: int
    member: str
    service_ns: int = 20 * MILLISECOND

    def start(self, world: World) -> Undo | None:
        """Slow it down."""
        node = world.nodes[self.member]
        node.service_ns = self.service_ns

        def mend() -> None:
            node.service_ns = 0

        return mend


@dataclass(frozen=True, slots=True)
class SendsFail:
    """The operating system refuses every send (no buffers, no route)."""

    at_ns: int
    for_ns: int
    member: str

    def start(self, world: World) -> Undo | None:
        """Refuse."""
        node = world.nodes[self.member]
        node.send_fails = True

        def mend() -> None:
            node.send_fails = False

        return mend


@dataclass(frozen=True, slots=True)
class DiskFull:
    """Nothing can be written to the state folder."""

    at_ns: int
    for_ns: int
    member: str

    def start(self, world: World) -> Undo | None:
        """Fill it."""
        node = world.nodes[self.member]
        node.disk_full = True

        def mend() -> None:
            node.disk_full = False

        return mend


@dataclass(frozen=True, slots=True)
class Weather:
    """Any `Trouble` on the network for a while: loss, bursts, latency, reordering, corruption, a small MTU."""

    at_ns: int
    for_ns: int
    trouble: Trouble

    def start(self, world: World) -> Undo | None:
        """Lay it on."""
        number = world.network.trouble(self.trouble)
        return lambda: world.network.mend(number)


@dataclass(frozen=True, slots=True)
class Cut:
    """Nothing passes from `sources` to `destinations` (None: everybody); `exchanges=False` lets connections pass."""

    at_ns: int
    for_ns: int
    sources: frozenset[str] | None
    destinations: frozenset[str] | None
    exchanges: bool = True

    def start(self, world: World) -> Undo | None:
        """Cut it, one way."""
        number = world.network.cut(self.sources, self.destinations, exchanges=self.exchanges)
        return lambda: world.network.mend(number)


@dataclass(frozen=True, slots=True)
class Partition:
    """`members` on one side, everybody else on the other; nothing passes either way."""

    at_ns: int
    for_ns: int
    members: frozenset[str]

    def start(self, world: World) -> Undo | None:
        """Part them."""
        others = frozenset(name for name in world.nodes if name not in self.members)
        numbers = [world.network.cut(self.members, others), world.network.cut(others, self.members)]

        def mend() -> None:
            for number in numbers:
                world.network.mend(number)

        return mend


@dataclass(frozen=True, slots=True)
class Replay:
    """Messages of the record arrive once more, at their old destination or at somebody else's door.

    Needs `Network(record=True)`. `pick` seeds the choice, so that the same schedule replays the same ones. An old
    reply answers the next request that its receiver makes.
    """

    at_ns: int
    count: int | None
    """None: every one that is kept, once, in the order they were sent."""
    pick: int = 0
    elsewhere: bool = False
    spread_ns: int = SECOND
    for_ns: int = 0

    def start(self, world: World) -> Undo | None:
        """Send them, spread over `spread_ns`."""
        recorded = list(world.network.recorded or ())
        rng = fork(world.seed, "replay", self.pick, self.at_ns)
        addresses = [node.address for node in world.nodes.values()]
        count = len(recorded) if self.count is None else min(self.count, len(recorded))
        for number in range(count):
            message = recorded[number if self.count is None else rng.randrange(len(recorded))]
            if self.elsewhere:
                message = replace(message, destination=addresses[rng.randrange(len(addresses))])
            delay = self.spread_ns * number // count if self.count is None else rng.randrange(self.spread_ns)
            world.after(delay, world.inject, message)
        return None


@dataclass(frozen=True, slots=True)
class Rebind:
    """A node's packets come from another address from now on and it is reached there alone, untold (a NAT)."""

    at_ns: int
    member: str
    address: Address
    for_ns: int = 0

    def start(self, world: World) -> Undo | None:
        """Move it."""
        world.move(world.nodes[self.member], self.address)
        return None
