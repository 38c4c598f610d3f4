"""Where a prefix lives by agreement: an order of nodes that every node computes alike from names and declared lanes.

Requests with a long shared head (tools, system text) have the head's two best nodes as homes, so that heads are not
computed everywhere; which of the two is the conversation's own is decided by its opening. Behind them, and for short
heads from the first place on, the opening alone decides. The order is a defined way to fail over: when a home goes,
only its own conversations move, and every node moves them to the same place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swimcluster.member import MemberState
from swimcluster.rendezvous import rank

SCAFFOLD_HOMES = 2


@dataclass(frozen=True, slots=True)
class Holder:
    """A node that has the model ready. `lanes` is declared, not measured, so that all nodes weigh it alike."""

    name: str
    lanes: int = 1
    state: MemberState = MemberState.ALIVE


def home_order(scaffold: bytes, opening: bytes, holders: Iterable[Holder]) -> tuple[str, ...]:
    """Node names, the first home first; empty when the request has no opening."""
    if not opening:
        return ()
    nodes = tuple(holders)
    own = [holder.name for holder in rank(opening, nodes, weight=_weight)]
    if not scaffold:
        return tuple(own)
    shared = {holder.name for holder in rank(scaffold, nodes, weight=_weight)[:SCAFFOLD_HOMES]}
    return tuple(sorted(own, key=lambda name: name not in shared))


def _weight(holder: Holder) -> float:
    """Lanes rounded down to a power of two, so that a re-measured lane count seldom moves anything."""
    return float(1 << (max(1, holder.lanes).bit_length() - 1))
