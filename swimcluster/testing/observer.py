"""Who watches a world: told of every step, after the fact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swimcluster.testing.node import Input, Node

if TYPE_CHECKING:
    from swimcluster.testing.world import World


class Observer:
    """Watches a world. Override what is of interest; every method is called after the fact."""

    def booted(self, world: World, node: Node) -> None:
        """A process has started."""

    def stopped(self, world: World, node: Node) -> None:
        """A process has ended."""

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        """A machine took one input (`kind` datagram, request, reply, failure, wake or call)."""

    def received(self, world: World, node: Node, item: Input) -> None:
        """An input is about to be given to a machine."""

    def advanced(self, world: World, node: Node, local: int, deadline: int | None) -> None:
        """A machine was advanced to `local` on its clock, and now names `deadline`."""

    def noted(self, world: World, text: str) -> None:
        """A fault began or ended."""
