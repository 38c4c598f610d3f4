"""Who takes a key, decided by every member alone and alike: rendezvous hashing, and a ring for those who want one.

Both look at names only, so two members with the same view agree whatever the order of their lists. Views differ for
a moment while news travels: this is placement, not a lock. Rendezvous moves 1/n of the keys when a member goes and
spreads them over all others; it costs one hash per member and key. A ring answers in log time from a built table.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from blake3 import blake3

from swimcluster.member import MemberState

POINTS = 128
"""Places each member takes on a ring; the spread of load is about 1/sqrt(POINTS)."""
HASH_BITS = 64


class Named(Protocol):
    """What placement needs of a member; `swimcluster.Member` is one."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> MemberState: ...


N = TypeVar("N", bound=Named)


def rank(key: bytes | str, members: Iterable[N], *, weight: Callable[[N], float] | None = None) -> list[N]:
    """Order the live members by their claim to `key`, the owner first.

    Dead and departed members are left out; a suspected one is still a member.

    Args:
        weight: a member's share against the others', > 0; a member of weight 0 is left out. None counts all alike.

    Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates"; weights by -w/ln(u).
    """
    scored: list[tuple[float, str, N]] = []
    for member in members:
        share = 1.0 if weight is None else weight(member)
        if member.state.is_gone or share <= 0:
            continue
        # u in (0, 1]: -w/ln(u) is monotone in u for equal weights, so the unweighted order is that of the hashes.
        u = (_hash(key, member.name) + 1) / (1 << HASH_BITS)
        scored.append((math.inf if u == 1.0 else -share / math.log(u), member.name, member))
    scored.sort(key=lambda entry: (-entry[0], entry[1]))
    return [member for _, _, member in scored]


def owner(key: bytes | str, members: Iterable[N], *, weight: Callable[[N], float] | None = None) -> N | None:
    """Return the live member with the first claim to `key`, or None when nobody lives."""
    ranked = rank(key, members, weight=weight)
    return ranked[0] if ranked else None


class Ring(Generic[N]):
    """Consistent hashing over the live members of one view; build another when the view changes."""

    def __init__(self, members: Iterable[N], *, points: int = POINTS) -> None:
        self._members = {member.name: member for member in members if not member.state.is_gone}
        self._places = sorted((_hash(str(point), name), name) for name in self._members for point in range(points))

    def owners(self, key: bytes | str, count: int = 1) -> list[N]:
        """Return up to `count` distinct members, walking the ring from the place of `key`."""
        found: dict[str, N] = {}
        start = bisect.bisect(self._places, (_hash(key, ""), ""))
        for step in range(len(self._places)):
            if len(found) >= min(count, len(self._members)):
                break
            name = self._places[(start + step) % len(self._places)][1]
            found.setdefault(name, self._members[name])
        return list(found.values())


def _hash(key: bytes | str, name: str) -> int:
    raw = key.encode() if isinstance(key, str) else key
    # The length in front keeps ("a", "bc") and ("ab", "c") apart.
    digest = blake3(len(raw).to_bytes(8, "big") + raw + name.encode()).digest(HASH_BITS // 8)
    return int.from_bytes(digest, "big")
