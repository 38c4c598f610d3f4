"""A member's state folder in the simulator: what its process finds there, and when it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from swimcluster.errors import DecodeError
from swimcluster.events import (
    BroadcastReceived,
    MemberSuspected,
    MetadataChanged,
    ReachabilityChanged,
    UserMessage,
    VitalsChanged,
)
from swimcluster.member import MemberState
from swimcluster.snapshot import KnownAddress, Snapshot, decode_snapshot, encode_snapshot
from swimcluster.testing.network import SECOND
from swimcluster.testing.node import Node
from swimcluster.testing.observer import Observer

if TYPE_CHECKING:
    from swimcluster.testing.cluster import SimulatedCluster
    from swimcluster.testing.world import World

SNAPSHOT_EVERY_NS = 5 * SECOND
UNWRITTEN = frozenset(
    {BroadcastReceived, MemberSuspected, MetadataChanged, ReachabilityChanged, UserMessage, VitalsChanged}
)
"""Events that change nothing of what a snapshot holds: names, addresses, deaths."""


def read_disk(node: Node) -> Snapshot:
    """What a process finds in its state folder; unreadable is empty."""
    try:
        return decode_snapshot(node.disk["snapshot"]) if "snapshot" in node.disk else Snapshot()
    except DecodeError:
        return Snapshot()


class SnapshotKeeper(Observer):
    """Writes each member's snapshot as the driver does: after a change, at most once per five seconds."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster

    def booted(self, world: World, node: Node) -> None:
        if node.name in self.cluster.places:
            self._write(node)

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        place = self.cluster.places.get(node.name) if events else None
        if place is None:
            return
        if not place.snapshot_differs:
            place.snapshot_differs = any(type(event) not in UNWRITTEN for event in events)
        if not place.snapshot_due:
            place.snapshot_due = True
            world.after(SNAPSHOT_EVERY_NS, self._due, node, node.life)

    def _due(self, node: Node, life: int) -> None:
        if node.life == life and node.machine is not None:
            self.cluster.places[node.name].snapshot_due = False
            self._write(node)

    def _write(self, node: Node) -> None:
        place, machine = self.cluster.places[node.name], cast("Any", node.machine)
        # Deaths that are forgotten and new epochs come without an event.
        dead = tuple(m for m in machine.departed() if m.state == MemberState.DEAD)
        silent = (machine.local.epoch, tuple((m.name, m.address) for m in dead))
        if not place.snapshot_differs and silent == place.written:
            return
        live = [KnownAddress(m.name, m.address) for m in machine.members() if not m.is_local]
        gone = [KnownAddress(m.name, m.address, failed=True) for m in dead]
        if node.write("snapshot", encode_snapshot(Snapshot(machine.local.epoch, (*live, *gone)))):
            place.snapshot_differs, place.written = False, silent
