"""Which idle prefixes leave the KV cache at once, though they have not rested: those in the way of what starts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from saiserve.engines.llamacpp.reuse import Held


def has_no_lane_left(*, running: int, waiting: int, lanes: int) -> bool:
    """Whether a conversation that came back now would have to wait for a lane, so that its cells need not lie ready.

    With nothing running a request begins on cleared ground anyway (decision 0150).
    """
    return running > 0 and running + waiting >= lanes


def in_the_way(held: Iterable[Held], wanted: Collection[Held]) -> list[Held]:
    """Idle prefixes that nobody who starts now begins with, the longest unused first."""
    idle = [each for each in held if each.is_idle and each not in wanted]
    return sorted(idle, key=lambda each: (each.used_at, each.sequence))
