"""How well this node itself is doing, judged by its own probes (Lifeguard, LHA-Probe; docs/protocol.md, local health)."""

from __future__ import annotations


class LocalHealth:
    """A score from 0 (healthy) to `maximum`; probe interval and timeout are multiplied by score + 1."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.score = 0

    def apply(self, delta: int) -> None:
        """Add to the score within its bounds: +1 for a sign of own trouble, -1 for an acknowledged probe."""
        self.score = min(self.maximum, max(0, self.score + delta))

    def scale(self, duration: int) -> int:
        """Return the duration stretched by the score."""
        return duration * (self.score + 1)
