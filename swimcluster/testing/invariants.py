"""What must hold after every step, whatever the network does. docs/protocol.md numbers the invariants.

Each checker watches one thing and is shown to bite by a test that breaks the machine in that one way. A violation is
a line of text with its time; `Checks` gathers them, and raises at the first when asked to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from swimcluster.address import Address
from swimcluster.member import Member, MemberState
from swimcluster.testing.cluster import SimulatedCluster
from swimcluster.testing.network import SECOND
from swimcluster.testing.node import Input, Node
from swimcluster.testing.world import Observer, World

VIOLATIONS_MAX = 20


class InvariantError(AssertionError):
    """An invariant was violated; the message says which, where and when."""


class Checker(Observer):
    """One invariant. Calls `violated` on the `Checks` it belongs to."""

    checks: Checks

    def violated(self, world: World, node: Node, text: str) -> None:
        """Report a violation."""
        self.checks.report(f"{world.now / SECOND:.6f} s {node.name}: {type(self).__name__}: {text}")

    def looked(self, world: World, node: Node, members: tuple[Member, ...], departed: tuple[Member, ...]) -> None:
        """See a node's whole view: after each step that brought an event, and now and then otherwise."""


class VersionsRise(Checker):
    """At one observer a member's (epoch, instance, incarnation, state) never falls while it is remembered (rule P1).

    This is legal transitions and no resurrection in one: at an equal version only ALIVE → SUSPECT → DEAD → LEFT,
    and whoever is gone comes back with a higher version only.
    """

    def __init__(self) -> None:
        self.held: dict[str, dict[str, Version]] = {}

    def booted(self, world: World, node: Node) -> None:
        self.held[node.name] = {}

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        held = self.held[node.name]
        for event in events:
            member = getattr(event, "member", None)
            if isinstance(member, Member):
                version = _version(member)
                if version < held.get(member.name, version):
                    text = f"{type(event).__name__} takes {member.name} from {_words(held[member.name])}"
                    self.violated(world, node, f"{text} to {_words(version)}")
                held[member.name] = version

    def looked(self, world: World, node: Node, members: tuple[Member, ...], departed: tuple[Member, ...]) -> None:
        before = self.held[node.name]
        after: dict[str, Version] = {}
        for member in (*members, *departed):
            version = _version(member)
            after[member.name] = version
            held = before.get(member.name)
            if held is not None and version < held:
                self.violated(world, node, f"{member.name} fell from {_words(held)} to {_words(version)}")
        self.held[node.name] = after


Version = tuple[int, bytes, int, int]


def _version(member: Member) -> Version:
    return member.epoch, member.instance, member.incarnation, int(member.state)


def _words(version: Version) -> str:
    return f"{MemberState(version[3]).name} {version[0]}.{version[2]} of {version[1].hex()[:4]}"


class OneContentPerVersion(Checker):
    """A member's own words of one (epoch, instance, incarnation) carry one metadata and one address, at every observer.

    Looked up by `metadata_at`: while failure news runs ahead of the member's words, its version is above theirs.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[str, tuple[int, bytes, int]], tuple[bytes, Address, str]] = {}

    def looked(self, world: World, node: Node, members: tuple[Member, ...], departed: tuple[Member, ...]) -> None:
        for member in members:
            key = (member.name, member.metadata_at)
            content = (member.metadata, member.address)
            first = self.known.setdefault(key, (*content, node.name))
            if first[:2] != content:
                self.violated(world, node, f"{member.name} has two contents in one version (the other at {first[2]})")


class AliveToItself(Checker):
    """A member that takes part is ALIVE in its own view, and its own version never falls."""

    def __init__(self) -> None:
        self.own: dict[str, tuple[int, int, int]] = {}

    def looked(self, world: World, node: Node, members: tuple[Member, ...], departed: tuple[Member, ...]) -> None:
        machine: Any = node.machine
        own = machine.local
        status = machine.join_status.name
        if status not in {"LEAVING", "LEFT", "NAME_IN_USE"}:
            if own.state is not MemberState.ALIVE:
                self.violated(world, node, f"it is {own.state.name} to itself")
            if not any(member.is_local for member in members):
                self.violated(world, node, "it is not in its own view")
        version = (node.life, own.epoch, own.incarnation)
        if version < self.own.get(node.name, version):
            self.violated(world, node, f"its own version fell from {self.own[node.name]} to {version}")
        self.own[node.name] = version


class WithinBudget(Checker):
    """No datagram and no exchange is longer than its budget."""

    def __init__(self, *, datagram_bytes: int, exchange_bytes: int) -> None:
        self.datagram_bytes, self.exchange_bytes = datagram_bytes, exchange_bytes
        self.longest = 0

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        for item in sent:
            budget = self.exchange_bytes if hasattr(item, "timeout_ns") else self.datagram_bytes
            if len(item.data) > budget:
                self.violated(world, node, f"{len(item.data)} bytes to {item.destination}, over {budget}")
            if budget == self.datagram_bytes:
                self.longest = max(self.longest, len(item.data))


class BoundedQueues(Checker):
    """Every table and queue stays within its limit."""

    def __init__(self, limits: dict[str, int]) -> None:
        self.limits = limits

    def looked(self, world: World, node: Node, members: tuple[Member, ...], departed: tuple[Member, ...]) -> None:
        machine: Any = node.machine
        statistics = machine.statistics()
        for name, limit in self.limits.items():
            if getattr(statistics, name) > limit:
                self.violated(world, node, f"{name} is {getattr(statistics, name)}, over {limit}")


class DeadlinesAhead(Checker):
    """After `advance(now)` the next deadline is later than `now`."""

    def advanced(self, world: World, node: Node, local: int, deadline: int | None) -> None:
        if deadline is not None and deadline <= local:
            self.violated(world, node, f"after advance the next deadline is {local - deadline} ns ago")


class NoBlindAccusations(Checker):
    """A member that hears nothing raises at most `most` suspicions of its own before it has heard something again.

    It applies while fewer than `hold_s` have passed since the last input; then holding must end (SWIM's own rule
    would accuse everybody: Lifeguard's motive).
    """

    def __init__(self, *, most: int, hold_s: float) -> None:
        self.most, self.hold_ns = most, round(hold_s * SECOND)
        self.heard_at: dict[str, int] = {}
        self.blind: dict[str, int] = {}

    def booted(self, world: World, node: Node) -> None:
        self.received(world, node, Input("datagram", None, b""))

    def received(self, world: World, node: Node, item: Input) -> None:
        if item.kind != "failure":
            self.heard_at[node.name] = world.now
            self.blind[node.name] = 0

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        for event in events:
            if type(event).__name__ == "MemberSuspected" and event.accuser == self.checks.member_name(node):
                self.blind[node.name] = self.blind.get(node.name, 0) + 1
                silent = world.now - self.heard_at[node.name]
                if self.blind[node.name] > self.most and silent < self.hold_ns:
                    text = f"accusation {self.blind[node.name]} after {silent / SECOND:.1f} s without any input"
                    self.violated(world, node, text)


class NoGhosts(Checker):
    """Nobody lists a process as newly joined that ended longer than `grace_s` ago: than anybody may believe in it."""

    def __init__(self, *, grace_s: float) -> None:
        self.grace_ns = round(grace_s * SECOND)
        self.ended_at: dict[bytes, int] = {}
        self.living: dict[str, bytes] = {}
        self.stalled_at: dict[str, int] = {}

    def booted(self, world: World, node: Node) -> None:
        machine: Any = node.machine
        self.living[node.name] = machine.local.instance
        self.stalled_at[node.name] = 0

    def stopped(self, world: World, node: Node) -> None:
        self.ended_at[self.living[node.name]] = world.now

    def received(self, world: World, node: Node, item: Input) -> None:
        if node.inbox or node.held or node.paused or node.service_ns:
            self.stalled_at[node.name] = world.now

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        for event in events:
            if type(event).__name__ in {"MemberJoined", "MemberRestarted"}:
                ended = self.ended_at.get(event.member.instance)
                # Whoever was stalled reads old acks in good faith.
                stalled = world.now - self.stalled_at.get(node.name, 0) < self.grace_ns and self.stalled_at[node.name]
                if ended is not None and world.now - ended > self.grace_ns and not stalled:
                    age = (world.now - ended) / SECOND
                    self.violated(world, node, f"{event.member.name} joined, whose process ended {age:.1f} s ago")


class OnlyOurs(Checker):
    """Only members of this cluster are ever listed: nobody unauthenticated, nobody of another cluster."""

    def looked(self, world: World, node: Node, members: tuple[Member, ...], departed: tuple[Member, ...]) -> None:
        ours = self.checks.names()
        for member in (*members, *departed):
            if member.name not in ours:
                self.violated(world, node, f"{member.name} is not a member of this cluster")


class EventsTellAll(Checker):
    """Whoever applies the events one by one has the same live names as `members()` tells."""

    def __init__(self) -> None:
        self.told: dict[str, dict[str, bytes]] = {}

    def booted(self, world: World, node: Node) -> None:
        machine: Any = node.machine
        self.told[node.name] = {member.name: member.instance for member in machine.members()}

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        told = self.told[node.name]
        for event in events:
            name = type(event).__name__
            if name in {"MemberJoined", "MemberRestarted"}:
                told[event.member.name] = event.member.instance
            elif name in {"MemberDied", "MemberLeft"}:
                told.pop(event.member.name, None)
            elif name in {"EventsLost", "Snapshot"}:
                machine: Any = node.machine
                self.told[node.name] = told = {member.name: member.instance for member in machine.members()}

    def looked(self, world: World, node: Node, members: tuple[Member, ...], departed: tuple[Member, ...]) -> None:
        told = self.told[node.name]
        seen = {member.name: member.instance for member in members if not member.is_local}
        mine = {name: instance for name, instance in told.items() if name != self.checks.member_name(node)}
        if seen != mine:
            missing, extra = sorted(seen.keys() - mine.keys()), sorted(mine.keys() - seen.keys())
            other = sorted(name for name in seen.keys() & mine.keys() if seen[name] != mine[name])
            self.violated(world, node, f"events missed {missing}, kept {extra}, of another life {other}")


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

    def _mine(self, node: Node) -> bool:
        return node.name in self.cluster.places

    def booted(self, world: World, node: Node) -> None:
        if self._mine(node):
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
    # A known name needs no verification (P16), so whoever was away may hear of a process that others still believe in:
    # for as long as its detection may take, the longest wait for a probe and the longest suspicion.
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
        EventsTellAll(),
    ]
