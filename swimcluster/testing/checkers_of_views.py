"""Invariants of views: what each member may believe of the others, step by step (docs/protocol.md, invariants)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swimcluster.address import Address
from swimcluster.member import Member, MemberState
from swimcluster.testing.network import SECOND
from swimcluster.testing.node import Input, Node
from swimcluster.testing.observer import Observer
from swimcluster.testing.world import World

if TYPE_CHECKING:
    from swimcluster.testing.invariants import Checks


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

    Copies of one process share its versions and may say different things in one: as many contents as there were
    processes of that instance, of which no observer ever shows more than one.
    Looked up by `metadata_at`: while failure news runs ahead of the member's words, its version is above theirs.
    """

    def __init__(self) -> None:
        self.known: dict[WordsOf, dict[Content, str]] = {}
        self.shown: dict[str, dict[WordsOf, Content]] = {}

    def booted(self, world: World, node: Node) -> None:
        self.shown[node.name] = {}

    def looked(self, world: World, node: Node, members: tuple[Member, ...], departed: tuple[Member, ...]) -> None:
        shown = self.shown[node.name]
        for member in members:
            key, content = (member.name, member.metadata_at), (member.metadata, member.address)
            if shown.get(key) == content:
                continue
            first = self.known.setdefault(key, {})
            first.setdefault(content, node.name)
            if key in shown or len(first) > self.checks.holders(member.metadata_at[1]):
                others = ", ".join(sorted({name for other, name in first.items() if other != content}))
                self.violated(world, node, f"{member.name} has two contents in one version (the other at {others})")
            shown[key] = content


WordsOf = tuple[str, tuple[int, bytes, int]]
Content = tuple[bytes, Address]


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


class LeftIsNotFailed(Checker):
    """Who said that it leaves is never reported as suspect or failed in that life.

    A copy of a process that left goes on in the same life: once it has come back it may fail.
    """

    def __init__(self) -> None:
        self.left: dict[str, set[tuple[str, int, bytes]]] = {}

    def booted(self, world: World, node: Node) -> None:
        self.left[node.name] = set()

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        for event in events:
            name = type(event).__name__
            if name in {"MemberLeft", "MemberDied", "MemberSuspected"}:
                life = (event.member.name, event.member.epoch, event.member.instance)
                if name == "MemberLeft":
                    self.left[node.name].add(life)
                elif life in self.left[node.name]:
                    self.violated(world, node, f"{name} about {life[0]}, which has left")
            elif name == "MemberJoined" and self.checks.holders(event.member.instance) > 1:
                self.left[node.name].discard((event.member.name, event.member.epoch, event.member.instance))


class NoGhosts(Checker):
    """Nobody lists a process as newly joined that ended, once all who knew it then have given it up for `grace_s`.

    Until then it may be heard of in good faith: a held life needs no verification (P16), and who is cut off doubts
    late (P13, P15). Copies of one process cannot be told apart by others: the last of them counts.
    """

    def __init__(self, *, grace_s: float) -> None:
        self.grace_ns = round(grace_s * SECOND)
        self.living: dict[str, bytes] = {}
        self.ended_at: dict[bytes, int] = {}
        self.believers: dict[bytes, set[str]] = {}
        """Who has listed an ended process without a break since it ran."""
        self.given_up_at: dict[bytes, int] = {}
        self.stalled_at: dict[str, int] = {}

    def booted(self, world: World, node: Node) -> None:
        machine: Any = node.machine
        self.living[node.name] = machine.local.instance
        self.stalled_at[node.name] = 0
        for member in machine.members():  # A copy believes what its original does.
            if self.believers.get(member.instance):
                self.believers[member.instance].add(node.name)

    def stopped(self, world: World, node: Node) -> None:
        for ended in self.believers:
            self._gives_up(world, node, ended)
        instance = self.living.pop(node.name, None)
        if instance is not None and instance not in self.living.values():
            self.ended_at[instance] = self.given_up_at[instance] = world.now
            self.believers[instance] = {name for name in self.living if self._lists(world.nodes[name], instance)}

    def _lists(self, node: Node, instance: bytes) -> bool:
        machine: Any = node.machine
        return any(member.instance == instance for member in machine.members())

    def _gives_up(self, world: World, node: Node, instance: bytes) -> None:
        if node.name in self.believers.get(instance, ()):
            self.believers[instance].discard(node.name)
            self.given_up_at[instance] = world.now

    def looked(self, world: World, node: Node, members: tuple[Member, ...], departed: tuple[Member, ...]) -> None:
        for member in members:
            if member.is_local:  # It draws a new instance when it finds that a copy of it runs.
                self.living[node.name] = member.instance

    def received(self, world: World, node: Node, item: Input) -> None:
        if node.inbox or node.held or node.paused or node.service_ns:
            self.stalled_at[node.name] = world.now

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        for event in events:
            name = type(event).__name__
            if name in {"MemberDied", "MemberLeft"}:
                self._gives_up(world, node, event.member.instance)
            elif name == "MemberRestarted":
                self._gives_up(world, node, event.previous.instance)
            if name in {"MemberJoined", "MemberRestarted"} and self._is_ghost(world, node, event.member.instance):
                age = (world.now - self.ended_at[event.member.instance]) / SECOND
                self.violated(world, node, f"{event.member.name} joined, whose process ended {age:.1f} s ago")

    def _is_ghost(self, world: World, node: Node, instance: bytes) -> bool:
        if instance not in self.ended_at or self.believers[instance]:
            return False
        # Whoever was stalled reads old acks in good faith.
        stalled = world.now - self.stalled_at.get(node.name, 0) < self.grace_ns and self.stalled_at[node.name]
        return world.now - self.given_up_at[instance] > self.grace_ns and not stalled


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
