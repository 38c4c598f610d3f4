"""Invariants of what members send, keep and tell: budgets, limits, deadlines, accusations, strangers, user messages."""

from __future__ import annotations

from typing import Any

from swimcluster.mac import FrameKind, RejectedError, open_frame
from swimcluster.member import Member
from swimcluster.testing.checkers_of_views import Checker
from swimcluster.testing.network import SECOND
from swimcluster.testing.node import Input, Node
from swimcluster.testing.world import World

INPUTS = frozenset({"datagram", "request", "reply"})
"""Steps in which a machine takes what others sent."""


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
    would accuse everybody: Lifeguard's motive). Suspicions that come with an input are another's, even if that other
    bears the same name.
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
        if kind in INPUTS:
            return
        for event in events:
            if type(event).__name__ == "MemberSuspected" and event.accuser == self.checks.member_name(node):
                self.blind[node.name] = self.blind.get(node.name, 0) + 1
                silent = world.now - self.heard_at[node.name]
                if self.blind[node.name] > self.most and silent < self.hold_ns:
                    text = f"accusation {self.blind[node.name]} after {silent / SECOND:.1f} s without any input"
                    self.violated(world, node, text)


class SilentToStrangers(Checker):
    """A datagram that no key of the receiver verifies makes it send nothing at all."""

    def __init__(self) -> None:
        self.last: dict[str, bytes] = {}

    def received(self, world: World, node: Node, item: Input) -> None:
        self.last[node.name] = item.data

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        if kind == "datagram" and sent:
            machine: Any = node.machine
            try:
                open_frame(machine.keyring, FrameKind.DATAGRAM, self.last[node.name])
            except RejectedError as rejected:
                self.violated(world, node, f"sends {len(sent)} messages after one of a stranger ({rejected.counter})")


class ToldOnce(Checker):
    """A broadcast is handed on once in a process's life, and an own request has one outcome."""

    def __init__(self) -> None:
        self.told: dict[str, set[tuple[str, str, bytes | int]]] = {}

    def booted(self, world: World, node: Node) -> None:
        self.told[node.name] = set()

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        for event in events:
            name = type(event).__name__
            if name == "BroadcastReceived":
                key: tuple[str, str, bytes | int] = ("broadcast", event.origin, event.payload)
            elif name in {"ReplyReceived", "RequestFailed"}:
                key = ("request", "", event.request_id)
            else:
                continue
            if key in self.told[node.name]:
                self.violated(world, node, f"{name} a second time for {key}")
            self.told[node.name].add(key)
