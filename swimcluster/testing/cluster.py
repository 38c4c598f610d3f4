"""Members of one cluster in a world: `Swim` machines, started, stopped and looked at by name.

It does for each machine what the trio driver does, and no more: it guesses the epoch from a wall clock and the disk,
gives the addresses on disk back, and writes them down when the membership changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from swimcluster.address import Address
from swimcluster.config import Config
from swimcluster.member import Member, MemberState
from swimcluster.swim import Swim
from swimcluster.testing.disk import SnapshotKeeper, read_disk
from swimcluster.testing.network import MILLISECOND, SECOND, Network
from swimcluster.testing.node import Node
from swimcluster.testing.observer import Observer
from swimcluster.testing.randomness import fork
from swimcluster.testing.world import World
from swimcluster.transmits import JoinStatus

KEY = b"a key for simulations only"
WALL_START_MS = 1_750_000_000_000
PRESETS: dict[str, Callable[..., Config]] = {"lan": Config.lan, "wan": Config.wan, "local": Config.local}


@dataclass(slots=True)
class Place:
    """What the cluster knows of one process beside its node."""

    member: str
    """The name it bears in the cluster; two processes may bear the same one."""
    seeds: tuple[Address, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    metadata: bytes = b""
    wall_skew_ms: int = 0
    leaving: bool = False
    snapshot_due: bool = False
    snapshot_differs: bool = False
    """Whether something happened that changes what is written."""
    written: object = None
    """What the last snapshot says beside the living."""


class SimulatedCluster:
    """A cluster in virtual time.

    >>> cluster = SimulatedCluster(5, seed=1)
    >>> cluster.start_all()
    >>> cluster.settle(limit_s=30) is not None
    True
    """

    def __init__(
        self,
        size: int,
        *,
        seed: int,
        preset: str = "lan",
        network: Network | None = None,
        observers: Iterable[Observer] = (),
        keys: Sequence[bytes] = (KEY,),
        cluster: str = "simulated",
        machine: Callable[..., Any] = Swim,
        world: World | None = None,
        drift_ppm: int = 0,
        prefix: str = "n",
        subnet: int = 0,
        named_seeds: int = 0,
        **settings: Any,
    ) -> None:
        """Make places for `size` members, n000 and on; nobody runs yet.

        The first one is the others' seed and has none. With `named_seeds` all have the first so many as seeds, by names
        that go on leading to them when they move, as names do that somebody keeps up to date.
        """
        self.seed = seed
        self.world = World(seed=seed, network=network, drift_ppm=drift_ppm) if world is None else world
        self.preset, self.keys, self.cluster_name = preset, tuple(keys), cluster
        self.machine_class = machine
        self.settings = settings
        self.subnet = subnet
        self.places: dict[str, Place] = {}
        names = [f"{prefix}{i:03d}" for i in range(size)]
        seeds = [Address(f"{name}.seed", 7946) for name in names[:named_seeds]]
        for i, name in enumerate(names):
            self.add(name, seeds=seeds or ([] if i == 0 else [self._address(0)]))
        for name, seed_name in zip(names, seeds, strict=False):
            self.world.network.bind(seed_name, name)
        self.world.watch(SnapshotKeeper(self))
        for observer in observers:
            self.world.watch(observer)

    # Processes

    def _address(self, number: int) -> Address:
        return Address(f"10.{self.subnet}.{number >> 8}.{number & 255}", 7946)

    def add(
        self,
        name: str,
        *,
        seeds: Sequence[Address],
        member: str | None = None,
        address: Address | None = None,
        settings: dict[str, Any] | None = None,
        metadata: bytes = b"",
    ) -> Node:
        """Make a place for a process, called `name` in the world and `member` in the cluster."""
        node = self.world.add(name, self._address(len(self.places)) if address is None else address)
        node.boot = self._boot
        self.places[name] = Place(member or name, tuple(seeds), dict(settings or {}), metadata or name.encode())
        return node

    def config(self, name: str) -> Config:
        """The settings a process starts with."""
        place = self.places[name]
        settings = {**self.settings, **place.settings}
        keys = settings.pop("keys", self.keys)
        return PRESETS[self.preset](
            name=place.member,
            advertise=self.world.nodes[name].address,
            seeds=settings.pop("seeds", place.seeds),
            keys=keys,
            insecure=not keys,
            cluster=settings.pop("cluster", self.cluster_name),
            **settings,
        )

    def wall_ms(self, name: str) -> int:
        """What the wall clock of a process's host shows; only the first guess of an epoch looks at it."""
        return WALL_START_MS + self.world.now // MILLISECOND + self.places[name].wall_skew_ms

    def _boot(self, node: Node, now: int) -> Any:
        place = self.places[node.name]
        place.leaving = place.snapshot_due = False
        place.snapshot_differs, place.written = True, None
        known = read_disk(node)
        machine = self.machine_class(
            self.config(node.name),
            now=now,
            epoch=max(known.epoch + 1, self.wall_ms(node.name)),
            instance=fork(self.seed, "instance", node.name, node.life).randbytes(8),
            rng=fork(self.seed, "machine", node.name, node.life),
            metadata=place.metadata,
        )
        if known.addresses:
            machine.learn_addresses(now, [one.address for one in known.addresses])
        return machine

    def start(self, name: str) -> Node:
        """Start a process."""
        return self.world.boot(self.world.nodes[name])

    def start_all(self, *, within_s: float = 1.0, names: Iterable[str] | None = None) -> None:
        """Start processes in order, spread evenly over `within_s`; the first at once."""
        chosen = list(self.places if names is None else names)
        for i, name in enumerate(chosen):
            self.world.after(round(within_s * SECOND * i / len(chosen)), self._start_if_down, name)
        self.world.run_until(self.world.now + round(within_s * SECOND))

    def _start_if_down(self, name: str) -> None:
        if not self.world.nodes[name].running:
            self.start(name)

    def stop(self, name: str, *, host_down: bool = True) -> None:
        """Kill a process."""
        self.world.stop(self.world.nodes[name], host_down=host_down)

    def leave(self, name: str, *, stop_after_s: float = 5.0) -> None:
        """Let a member leave as its owner would, and end the process when it is done, or after so long."""
        node, life = self.world.nodes[name], self.world.nodes[name].life
        self.places[name].leaving = True
        self.world.call(node, lambda machine, now: machine.leave(now))
        deadline = self.world.now + round(stop_after_s * SECOND)

        def look() -> None:
            if node.life != life or node.machine is None:
                return
            machine: Any = node.machine
            if machine.leave_progress.is_done or self.world.now >= deadline:
                self.world.stop(node, host_down=False)
            else:
                self.world.after(100 * MILLISECOND, look)

        self.world.after(0, look)

    def machine(self, name: str) -> Any:
        """The machine of a running process."""
        machine = self.world.nodes[name].machine
        if machine is None:
            raise ValueError(f"{name} does not run")
        return machine

    def call(self, name: str, method: str, *arguments: Any) -> Any:
        """Call `machine.method(now, *arguments)` as its owner would; what it sends is sent."""
        return self.world.call(self.world.nodes[name], lambda machine, now: getattr(machine, method)(now, *arguments))

    # Views

    def running(self) -> list[str]:
        """Processes that run and take part, or try to: not those that are leaving or were refused the name."""
        names = []
        for name, place in self.places.items():
            node = self.world.nodes[name]
            if node.machine is None or place.leaving:
                continue
            machine: Any = node.machine
            if machine.join_status is not JoinStatus.NAME_IN_USE:
                names.append(name)
        return names

    def view(self, name: str) -> dict[str, Member]:
        """The live members as one process sees them."""
        return {member.name: member for member in self.machine(name).members()}

    def differences(self, *, most: int = 10, among: Iterable[str] | None = None) -> list[str]:
        """What keeps the views from being one, as sentences; empty when all agree with the facts."""
        names = self.running() if among is None else list(among)
        facts = self._facts(names)
        found: list[str] = []
        for observer in names:
            found += self._faults(observer, facts)
            if len(found) >= most:
                return found[:most]
        return found

    def _facts(self, names: Iterable[str]) -> dict[str, Member]:
        return {self.places[name].member: self.machine(name).local for name in names}

    def _faults(self, observer: str, facts: dict[str, Member]) -> list[str]:
        """What one process sees otherwise than it is, as sentences."""
        view, found = self.view(observer), []
        for member, fact in facts.items():
            fault = _fault(view.get(member), fact)
            if fault:
                found.append(f"{observer} has {member} {fault}")
        found.extend(f"{observer} has {name}, which does not run" for name in view if name not in facts)
        return found

    def settle(self, *, limit_s: float, every_s: float = 0.25, among: Iterable[str] | None = None) -> float | None:
        """Run until all views agree with the facts; the seconds it took, or None when the limit came first."""
        start = self.world.now
        behind: list[str] = []

        def differ() -> bool:
            # Whoever was behind at the last look most likely still is: one view tells, instead of all.
            names = self.running() if among is None else list(among)
            facts = self._facts(names)
            observers = [*(observer for observer in behind if observer in names), *names]
            behind[:] = next(([observer] for observer in observers if self._faults(observer, facts)), [])
            return bool(behind)

        agreed = self.world.run_while(differ, limit_s=limit_s, every_s=every_s)
        return (self.world.now - start) / SECOND if agreed else None


def _fault(seen: Member | None, fact: Member) -> str:
    if seen is None:
        return "missing"
    if seen.state is not MemberState.ALIVE:
        return f"{seen.state.name.lower()}"
    if seen.instance != fact.instance:
        return "of another life"
    if seen.address != fact.address:
        return f"at {seen.address} instead of {fact.address}"
    return "" if seen.metadata == fact.metadata else "with other metadata"
