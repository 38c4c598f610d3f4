"""One member's life, or all of them, as text: what it did, what befell it, and what others thought of it, line by line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swimcluster.testing.network import SECOND
from swimcluster.testing.node import Input, Node
from swimcluster.testing.observer import Observer
from swimcluster.testing.world import World

LINES_MAX = 10_000


class Timeline(Observer):
    """Keeps what concerns `member` (None: everybody), at most `LINES_MAX` lines; the oldest stay, and a last line counts the rest.

    `inputs` adds every message it receives, in the words of `describe` if given.
    """

    def __init__(
        self, member: str | None, *, inputs: bool = False, describe: Callable[[bytes], str] | None = None
    ) -> None:
        self.member = member
        self.inputs = inputs
        self.describe = describe
        self.lines: list[tuple[int, str, str]] = []
        self.dropped = 0

    def text(self) -> str:
        """The whole as lines of time in seconds, node, and what happened."""
        width = max((len(node) for _, node, _ in self.lines), default=0)
        lines = [f"{at / SECOND:12.6f}  {node:<{width}}  {what}" for at, node, what in self.lines]
        if self.dropped:
            lines.append(f"... and {self.dropped} lines more")
        return "\n".join(lines)

    def _add(self, world: World, node: str, what: str) -> None:
        if len(self.lines) < LINES_MAX:
            self.lines.append((world.now, node, what))
        else:
            self.dropped += 1

    def _concerns(self, name: str | None) -> bool:
        return self.member is None or name == self.member

    def booted(self, world: World, node: Node) -> None:
        if self._concerns(node.name):
            self._add(world, node.name, f"starts life {node.life} at {node.address}")

    def stopped(self, world: World, node: Node) -> None:
        if self._concerns(node.name):
            self._add(world, node.name, "ends")

    def noted(self, world: World, text: str) -> None:
        self._add(world, "*", text)

    def received(self, world: World, node: Node, item: Input) -> None:
        if self.inputs and self._concerns(node.name):
            what = self.describe(item.data) if self.describe is not None and item.data else f"{len(item.data)} bytes"
            self._add(world, node.name, f"{item.kind} from {item.source}: {what}")

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        for event in events:
            about = getattr(getattr(event, "member", None), "name", None)
            if self._concerns(node.name) or self._concerns(about):
                self._add(world, node.name, tell(event))


def tell(event: Any) -> str:
    """An event in a few words: its type, the member and its version, and what else it carries."""
    name, member = type(event).__name__, getattr(event, "member", None)
    if member is None:
        return str(event)
    words = [name, member.name, f"{member.epoch % 1_000_000}.{member.incarnation}", member.state.name]
    if getattr(event, "accuser", ""):
        words.append(f"accused by {event.accuser}")
    if name in {"MemberMoved", "MemberRestarted"}:
        words.append(f"at {member.address}")
    return " ".join(words)
