"""What applications do through a cluster while things go wrong: send, ask, broadcast; as data, like the faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from swimcluster.errors import ExchangeError
from swimcluster.testing.cluster import SimulatedCluster
from swimcluster.testing.faults import Undo
from swimcluster.testing.membership_faults import cluster_of
from swimcluster.testing.node import Node
from swimcluster.testing.observer import Observer
from swimcluster.testing.world import World

Answer = Callable[[str, str, bytes], bytes | None]
"""(member asked, member that asks, payload) → reply; None leaves the request without one."""


class Answers(Observer):
    """Answers user requests for every member, as the driver's `on_request` does."""

    def __init__(self, cluster: SimulatedCluster, answer: Answer) -> None:
        self.cluster, self.answer = cluster, answer
        cluster.world.watch(self)

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        place = self.cluster.places.get(node.name)
        for event in events:
            if place is not None and type(event).__name__ == "RequestReceived":
                reply = self.answer(place.member, event.sender, event.payload)
                if reply is not None:
                    world.after(0, world.answer, node, node.life, event.request_id, reply)


def _call(world: World, member: str, method: str, *arguments: Any) -> None:
    cluster, node = cluster_of(world), world.nodes[member]
    if node.running and not node.paused and not cluster.places[member].leaving:
        try:
            cluster.call(member, method, *arguments)
        except ExchangeError:
            world.note(f"{member} has nobody to {method} to")


@dataclass(frozen=True, slots=True)
class _ToOne:
    """A member has something for another one: `payload` bytes, `at_ns` nanoseconds into the run."""

    at_ns: int
    member: str
    to: str
    payload: bytes
    for_ns: int = 0

    method: ClassVar[str]
    """How the machine is told."""

    def start(self, world: World) -> Undo | None:
        """Say it, if the other is live in the member's view."""
        _call(world, self.member, self.method, self.to, self.payload)
        return None


class Send(_ToOne):
    """A member sends another one a datagram."""

    __slots__ = ()
    method = "send"


class Ask(_ToOne):
    """A member asks another one something; `Answers` reply."""

    __slots__ = ()
    method = "request"


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A member tells everybody."""

    at_ns: int
    member: str
    payload: bytes
    for_ns: int = 0

    def start(self, world: World) -> Undo | None:
        """Hand it to the member."""
        _call(world, self.member, "broadcast", self.payload)
        return None
