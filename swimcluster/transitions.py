"""Changes of the member table as values, for those who watch a machine (simulators, invariant checkers)."""

from __future__ import annotations

from dataclasses import dataclass

from swimcluster.address import Address
from swimcluster.member import MemberState


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of the table at one moment."""

    name: str
    address: Address
    instance: bytes
    epoch: int
    incarnation: int
    state: MemberState
    metadata: bytes
    metadata_at: tuple[int, bytes, int]
    """Epoch, instance and incarnation of the Alive the address and metadata came with."""
    is_verified: bool
    """Whether it is a member; False for a candidate that waits for its first ack."""
    is_local: bool


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of one entry; None before means it is new, None after that it was forgotten."""

    name: str
    before: Record | None
    after: Record | None
    cause: str
