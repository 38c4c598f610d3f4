"""Counters that show a run was not vacuous: which faults struck, what the network did, what the machines saw."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from swimcluster.testing.node import Input, Node
from swimcluster.testing.observer import Observer
from swimcluster.testing.world import World


class Coverage(Observer):
    """Counts by name: `fault:Crash`, `event:MemberJoined`, `input:datagram`, `network:lost`, `boot`, `stop`."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def hit(self, name: str, times: int = 1) -> None:
        """Count something."""
        self.counts[name] = self.counts.get(name, 0) + times

    def booted(self, world: World, node: Node) -> None:
        """Count starts."""
        self.hit("boot")

    def stopped(self, world: World, node: Node) -> None:
        """Count ends."""
        self.hit("stop")

    def received(self, world: World, node: Node, item: Input) -> None:
        """Count inputs by kind."""
        self.hit(f"input:{item.kind}")

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        """Count events by type."""
        for event in events:
            self.hit(f"event:{type(event).__name__}")

    def noted(self, world: World, text: str) -> None:
        """Count faults by type."""
        if text.startswith("begin "):
            self.hit(f"fault:{text[6:].partition('(')[0]}")

    def with_network(self, world: World) -> dict[str, int]:
        """All counters, the network's included, in order of name."""
        merged = dict(self.counts)
        for name, count in world.network.counts.items():
            merged[f"network:{name}"] = count
        return dict(sorted(merged.items()))

    def missing(self, world: World, names: Iterable[str]) -> list[str]:
        """Which of `names` never happened."""
        counts = self.with_network(world)
        return [name for name in names if not counts.get(name)]


def merged(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """The sum of several runs' counters, in order of name."""
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))
