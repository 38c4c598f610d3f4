"""What the questions share: clusters that have formed, the plain SWIM settings, and a log of who learned what when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swimcluster.testing.cluster import SimulatedCluster
from swimcluster.testing.network import SECOND, Network
from swimcluster.testing.node import Node
from swimcluster.testing.observer import Observer
from swimcluster.testing.world import World

SWIM_ONLY: dict[str, Any] = {
    "gossip_interval_s": 0,
    "push_pull_interval_s": 0,
    "reconnect_interval_s": 0,
    "exchange_probe": False,
    "local_health_max": 0,
    "confirmations": 0,
    "suspicion_max_mult": 1.0,
    "buddy": False,
    "nacks": False,
    "hold_accusations": False,
}
"""The SWIM paper's protocol: probes, k relays, piggyback on pings and acks, a fixed suspicion; nothing of Lifeguard."""

FORM_LIMIT_S = 600.0


class FormationError(Exception):
    """A cluster did not come together, so that nothing can be measured on it."""


def formed(
    size: int, seed: int, *, network: Network | None = None, within_s: float | None = None, **settings: Any
) -> SimulatedCluster:
    """A cluster of `size` members, started over `within_s` and run until all see all.

    Raises:
        FormationError: they did not find each other within ten virtual minutes.
    """
    cluster = SimulatedCluster(size, seed=seed, network=network or Network(seed=seed), **settings)
    cluster.start_all(within_s=size / 20 if within_s is None else within_s)
    if cluster.settle(limit_s=FORM_LIMIT_S, every_s=1.0) is None:
        raise FormationError(f"seed {seed}: {'; '.join(cluster.differences(most=3))}")
    return cluster


@dataclass(frozen=True, slots=True)
class Happening:
    """An event of one member."""

    at: int
    """Nanoseconds of the world."""
    observer: str
    kind: str
    about: str
    """Name of the member concerned, empty if none."""
    event: Any

    @property
    def seconds(self) -> float:
        """When, in seconds of the world."""
        return self.at / SECOND


class EventLog(Observer):
    """Every event of the kinds asked for, in order."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds
        self.happenings: list[Happening] = []

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        """Keep what is asked for."""
        for event in events:
            name = type(event).__name__
            if name in self.kinds:
                about = getattr(getattr(event, "member", None), "name", "")
                self.happenings.append(Happening(world.now, node.name, name, about, event))

    def watch(self, cluster: SimulatedCluster) -> EventLog:
        """Watch a cluster from now on."""
        cluster.world.watch(self)
        return self


class Traffic(Observer):
    """Messages and bytes sent since it was made."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.datagrams = self.exchanges = self.bytes = 0
        self.since = cluster.world.now
        cluster.world.watch(self)

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        """Count what is sent."""
        for item in sent:
            self.bytes += len(item.data)
            if hasattr(item, "timeout_ns"):
                self.exchanges += 1
            else:
                self.datagrams += 1
