"""Faults that know what a membership is: leaving, moving, cloning, fighting over a name, half-done key rotation."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from swimcluster.address import Address
from swimcluster.errors import ConfigError
from swimcluster.testing.cluster import SimulatedCluster
from swimcluster.testing.faults import Undo
from swimcluster.testing.node import Input, Node
from swimcluster.testing.observer import Observer
from swimcluster.testing.world import World


def cluster_of(world: World) -> SimulatedCluster:
    """The first cluster that lives in this world."""
    for observer in world.observers:
        cluster = getattr(observer, "cluster", None)
        if isinstance(cluster, SimulatedCluster):
            return cluster
    raise ValueError("there is no SimulatedCluster in this world: this fault needs one")


@dataclass(frozen=True, slots=True)
class Leave:
    """A member leaves and is started again after `for_ns`."""

    at_ns: int
    for_ns: int
    member: str
    returns: bool = True

    def start(self, world: World) -> Undo | None:
        """Let it leave."""
        cluster, node = cluster_of(world), world.nodes[self.member]
        if not node.running or cluster.places[self.member].leaving:
            return None
        cluster.leave(self.member)

        def back() -> None:
            if node.running:
                world.stop(node)
            if self.returns:
                world.boot(node)

        return back


@dataclass(frozen=True, slots=True)
class SetMetadata:
    """A member replaces its metadata."""

    at_ns: int
    member: str
    metadata: bytes
    for_ns: int = 0

    def start(self, world: World) -> Undo | None:
        """Replace it, for this life and later ones."""
        cluster = cluster_of(world)
        cluster.places[self.member].metadata = self.metadata
        if world.nodes[self.member].running and not cluster.places[self.member].leaving:
            cluster.call(self.member, "set_metadata", self.metadata)
        return None


@dataclass(frozen=True, slots=True)
class Readvertise:
    """A member moves to another address and tells the others."""

    at_ns: int
    member: str
    address: Address
    for_ns: int = 0

    def start(self, world: World) -> Undo | None:
        """Move it."""
        node = world.nodes[self.member]
        world.move(node, self.address)
        if node.running and not cluster_of(world).places[self.member].leaving:
            cluster_of(world).call(self.member, "readvertise", self.address)
        return None


@dataclass(frozen=True, slots=True)
class SecondHolder:
    """Another process starts under a member's name at another address; with `clone`, from a copy of its disk.

    It is stopped after `for_ns`, if the cluster has not refused it before.
    """

    at_ns: int
    for_ns: int
    member: str
    address: Address
    clone: bool = False

    def start(self, world: World) -> Undo | None:
        """Start it."""
        cluster = cluster_of(world)
        name = f"{self.member}'{sum(self.member + chr(39) in other for other in world.nodes)}"
        seeds = [node.address for node in world.nodes.values() if node.running][:2]
        node = cluster.add(name, seeds=seeds, member=cluster.places[self.member].member, address=self.address)
        if self.clone:
            node.disk = dict(world.nodes[self.member].disk)
        world.boot(node)
        return lambda: world.stop(node) if node.running else None


@dataclass(frozen=True, slots=True)
class Twin:
    """A running member is copied with its memory, instance and luck, and both go on: a machine cloned while it runs.

    The copy is at `address` and does not know it, or, without one, takes the original's address over: packets to it
    reach the copy alone from then on. Connections that were open are broken for the copy. It ends after `for_ns`.
    """

    at_ns: int
    for_ns: int
    member: str
    address: Address | None = None

    def start(self, world: World) -> Undo | None:
        """Copy it."""
        cluster, original = cluster_of(world), world.nodes[self.member]
        if not original.running or cluster.places[self.member].leaving:
            return None
        place = cluster.places[self.member]
        name = f"{self.member}'{sum(self.member + chr(39) in other for other in world.nodes)}"
        address = original.address if self.address is None else self.address
        node = cluster.add(name, seeds=place.seeds, member=place.member, address=address, metadata=place.metadata)
        node.clock_offset, node.clock_ppm = original.clock_offset, original.clock_ppm
        node.disk = dict(original.disk)
        copied: Any = copy.deepcopy(original.machine)
        usual = node.boot
        world.boot(node, lambda node, now: copied)
        node.boot = usual
        for number in sorted(original.dials):
            node.dials.add(number)
            world.after(0, self._break, world, node, number)
        return lambda: self._end(world, node)

    def _break(self, world: World, node: Node, number: int) -> None:
        if node.running:
            world.accept(node, Input("failure", None, b"", number))

    def _end(self, world: World, node: Node) -> None:
        if node.running:
            world.stop(node, host_down=True)
        original = world.nodes[self.member]
        if original.running and original.address == node.address:
            world.network.bind(original.address, original.name)


class _StopRefused(Observer):
    """Ends processes that were refused their name, as the driver does."""

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        if any(type(event).__name__ == "NameTaken" for event in events):
            world.after(0, lambda: world.stop(node) if node.running else None)


def stop_refused(world: World) -> None:
    """Let processes end that are refused their name, as those of the driver do."""
    world.watch(_StopRefused())


@dataclass(frozen=True, slots=True)
class Strangers:
    """A member of another cluster (same key, other name) starts, perhaps at an address used here before."""

    at_ns: int
    for_ns: int
    address: Address
    seed: Address
    """A member of this cluster it is told to join, as a stale list of seeds would."""

    def start(self, world: World) -> Undo | None:
        """Start it."""
        cluster = cluster_of(world)
        name = f"stranger{sum(other.startswith('stranger') for other in world.nodes)}"
        others = SimulatedCluster(0, seed=cluster.seed, world=world, cluster="another", keys=cluster.keys)
        node = others.add(name, seeds=[self.seed], address=self.address)
        world.boot(node)

        def end() -> None:
            if node.running:
                world.stop(node)
            world.network.unbind(self.address, name)

        return end


@dataclass(frozen=True, slots=True)
class RotateKeys:
    """A key is installed everywhere but at `absent`, then used where the members agree to, then taken back.

    With members absent the cluster refuses to use it; that refusal is what keeps them in. A member with as many keys as
    it may have refuses a further one.
    """

    at_ns: int
    for_ns: int
    key: bytes
    absent: frozenset[str] = frozenset()

    def start(self, world: World) -> Undo | None:
        """Install it; at the end try to use it and go back."""
        cluster = cluster_of(world)
        ids: dict[str, tuple[bytes, bytes]] = {}
        for name in cluster.running():
            if name not in self.absent:
                old, new = cluster.machine(name).key_ids()[0], _try(cluster, name, "install_key", self.key)
                if new is not None:
                    ids[name] = (old, new)

        def finish() -> None:
            for name, (_old, new) in ids.items():
                _try(cluster, name, "use_key", new)
            for name, (old, _new) in ids.items():
                _try(cluster, name, "use_key", old)

        return finish


def _try(cluster: SimulatedCluster, name: str, method: str, key_or_id: bytes) -> Any:
    """What the machine returns, or None when it refuses or does not run."""
    if name in cluster.running():
        try:
            return cluster.call(name, method, key_or_id)
        except ConfigError:
            cluster.world.note(f"{name} refuses {method}")
    return None
