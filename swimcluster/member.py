"""What a member is, and which of two claims about one holds (SWIM §4.2; docs/protocol.md, precedence table)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from swimcluster.address import Address


class MemberState(enum.IntEnum):
    """How a member is regarded. The number breaks ties between equal (epoch, incarnation): higher wins."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3

    @property
    def is_gone(self) -> bool:
        """Whether the member takes no part any more: dead or left."""
        return self >= MemberState.DEAD


class Claim(NamedTuple):
    """What is said of a member's life: which one, which version of it, and its state.

    The order of the fields is the precedence: a later epoch first; then, between two processes that drew the same
    epoch, the greater instance, so that all nodes agree; then the incarnation; then the state.
    """

    epoch: int
    instance: bytes
    incarnation: int
    state: MemberState

    @property
    def life(self) -> tuple[int, bytes]:
        """Which life of the name this is about."""
        return self.epoch, self.instance


def overrides(new: Claim, held: Claim) -> bool:
    """Return whether `new` replaces `held`: the precedence table of docs/protocol.md (P1), SWIM §4.2 with epochs.

    A total order, so merging is commutative, associative and idempotent. ALIVE needs a greater incarnation than any
    failure evidence held, because every failure state is greater at an equal one.
    """
    return new > held


class Reachability(enum.Enum):
    """This node's own opinion of the path to a member; never gossiped."""

    DIRECT = "direct"
    RELAYED = "relayed"
    NONE = "none"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Member:
    """An immutable picture of one member, as this node sees it at one moment."""

    name: str
    address: Address
    instance: bytes
    """Eight random bytes drawn by the process; another life of the same name has another instance."""
    epoch: int
    """Life number of the name, ordered before the incarnation."""
    incarnation: int
    """Version of the member's claims within its epoch."""
    state: MemberState
    metadata: bytes = b""
    """Owner-authored, at most 512 bytes, replaced as a whole."""
    vitals: bytes = b""
    """Owner-authored, at most 128 bytes, latest wins; empty until some arrived."""
    vitals_age_s: float | None = None
    """Seconds since a packet of the owner last carried these vitals; None where there are none. Own reading."""
    rtt_s: float | None = None
    """Smoothed round-trip time of direct probes in seconds; None until one was acknowledged."""
    reachability: Reachability = Reachability.UNKNOWN
    is_local: bool = False
    metadata_at: tuple[int, bytes, int] = (0, b"", 0)
    """Epoch, instance and incarnation of the member's own words that address and metadata came with; they are below
    `epoch`, `instance` and `incarnation` while failure news has arrived sooner than newer words."""
