"""What must hold after every step, whatever the network does. docs/protocol.md numbers the invariants.

Each checker watches one thing and is shown to bite by a test that breaks the machine in that one way. A violation is
a line of text with its time; `Checks` gathers them, and raises at the first when asked to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from swimcluster.member import Member
from swimcluster.testing.checkers_of_conduct import (
    BoundedQueues,
    DeadlinesAhead,
    NoBlindAccusations,
    SilentToStrangers,
    ToldOnce,
    WithinBudget,
)
from swimcluster.testing.checkers_of_views import (
    AliveToItself,
    Checker,
    EventsTellAll,
    LeftIsNotFailed,
    NoGhosts,
    OneContentPerVersion,
    OnlyOurs,
    VersionsRise,
)
from swimcluster.testing.cluster import SimulatedCluster
from swimcluster.testing.network import SECOND
from swimcluster.testing.node import Input, Node
from swimcluster.testing.observer import Observer
from swimcluster.testing.world import World

VIOLATIONS_MAX = 20


__all__ = [
    "AliveToItself",
    "BoundedQueues",
    "Checker",
    "Checks",
    "DeadlinesAhead",
    "EventsTellAll",
    "InvariantError",
    "LeftIsNotFailed",
    "NoBlindAccusations",
    "NoGhosts",
    "OneContentPerVersion",
    "OnlyOurs",
    "SilentToStrangers",
    "ToldOnce",
    "VersionsRise",
    "WithinBudget",
    "default_checkers",
]


class InvariantError(AssertionError):
    """An invariant was violated; the message says which, where and when."""


class Checks(Observer):
    """All invariants of one cluster, together.

    Events are checked in each step. A node's whole view is looked at after a step that brought events, if the last look
    is `after_event_s` ago (0: always), and otherwise every `look_every_s`.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        checkers: Iterable[Checker] | None = None,
        *,
        raise_at_once: bool = False,
        look_every_s: float = 1.0,
        after_event_s: float = 0.0,
    ) -> None:
        self.cluster = cluster
        self.violations: list[str] = []
        self.raise_at_once = raise_at_once
        self.looks = 0
        self._look_every_ns, self._after_event_ns = round(look_every_s * SECOND), round(after_event_s * SECOND)
        self._looked_at: dict[str, int] = {}
        self._holders: dict[bytes, set[str]] = {}
        self.checkers = list(default_checkers(cluster) if checkers is None else checkers)
        for checker in self.checkers:
            checker.checks = self
        self._on_received = [c for c in self.checkers if type(c).received is not Observer.received]
        self._on_stepped = [c for c in self.checkers if type(c).stepped is not Observer.stepped]
        self._on_looked = [c for c in self.checkers if type(c).looked is not Checker.looked]
        self._on_advanced = [c for c in self.checkers if isinstance(c, DeadlinesAhead)]
        cluster.world.watch(self)

    def report(self, text: str) -> None:
        """Take a violation down.

        Raises:
            InvariantError: when asked to raise at once.
        """
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(text)
        if self.raise_at_once:
            raise InvariantError(f"{text} (seed {self.cluster.seed})")

    def member_name(self, node: Node) -> str:
        """The name a process bears in the cluster."""
        return self.cluster.places[node.name].member

    def names(self) -> frozenset[str]:
        """All names of this cluster."""
        return frozenset(place.member for place in self.cluster.places.values())

    def holders(self, instance: bytes) -> int:
        """How many processes may have borne an instance: more than one when a running process was copied."""
        return max(1, len(self._holders.get(instance, ())))

    def _bears(self, node: Node, member: Member) -> None:
        self._holders.setdefault(member.instance, set()).add(node.name)

    def _mine(self, node: Node) -> bool:
        return node.name in self.cluster.places

    def booted(self, world: World, node: Node) -> None:
        if self._mine(node):
            machine: Any = node.machine
            self._bears(node, machine.local)
            for checker in self.checkers:
                checker.booted(world, node)

    def stopped(self, world: World, node: Node) -> None:
        if self._mine(node):
            for checker in self.checkers:
                checker.stopped(world, node)

    def received(self, world: World, node: Node, item: Input) -> None:
        if self._mine(node):
            for checker in self._on_received:
                checker.received(world, node, item)

    def advanced(self, world: World, node: Node, local: int, deadline: int | None) -> None:
        if self._mine(node):
            for checker in self._on_advanced:
                checker.advanced(world, node, local, deadline)

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        if not self._mine(node):
            return
        for checker in self._on_stepped:
            checker.stepped(world, node, kind, sent, events)
        quiet = all(type(event).__name__ == "VitalsChanged" for event in events)
        wait = self._look_every_ns if quiet else self._after_event_ns
        if world.now - self._looked_at.get(node.name, -wait) < wait:
            return
        self._looked_at[node.name] = world.now
        self.looks += 1
        machine: Any = node.machine
        members, departed = machine.members(), machine.departed()
        for member in members:
            if member.is_local:  # Whoever finds that a copy of it runs has drawn a new instance.
                self._bears(node, member)
        for looking in self._on_looked:
            looking.looked(world, node, members, departed)


def default_checkers(cluster: SimulatedCluster) -> list[Checker]:
    """Every invariant, with the limits that follow from the cluster's settings."""
    config = cluster.config(next(iter(cluster.places)))
    limits = {
        "members_live": config.members_max,
        "members_unverified": config.unverified_max,
        "broadcasts_queued": config.broadcasts_max,
        "updates_queued": 2 * config.members_max,
        "exchanges_pending": 4 * config.members_max,
        "local_health": config.local_health_max,
    }
    size = max(2, len(cluster.places))
    # What the last believer in an ended process told may take its way through probes and suspicions: the longest wait
    # for a probe and the longest suspicion.
    suspicion_s = config.suspicion_mult * config.suspicion_max_mult * config.probe_interval_s
    longest_s = suspicion_s + 2 * size * config.probe_interval_s
    return [
        VersionsRise(),
        OneContentPerVersion(),
        AliveToItself(),
        WithinBudget(datagram_bytes=config.datagram_bytes_max, exchange_bytes=config.exchange_bytes_max),
        BoundedQueues(limits),
        DeadlinesAhead(),
        NoBlindAccusations(most=3, hold_s=suspicion_s)
        if size > 4 and config.hold_accusations
        else NoBlindAccusations(most=size * 100, hold_s=0),
        NoGhosts(grace_s=longest_s),
        OnlyOurs(),
        LeftIsNotFailed(),
        SilentToStrangers(),
        ToldOnce(),
        EventsTellAll(),
    ]
