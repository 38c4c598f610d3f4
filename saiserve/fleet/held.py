"""Which candidates hold which prefixes, as far as this node has seen: a bounded memory of its own placements.

Entries come from replies and go when a reply shows they were wrong, when they are old, or when the memory is full.
"""

from __future__ import annotations

from collections import OrderedDict

from saiserve.limits import HELD_HOLDERS_MAX, HELD_MARKS_MAX, HELD_S
from saiserve.routing.prefix import Mark

SECOND = 1_000_000_000


class HeldPrefixes:
    """A map from mark to the candidates believed to hold it."""

    def __init__(self, marks_max: int = HELD_MARKS_MAX) -> None:
        self._marks_max = marks_max
        self._holders: OrderedDict[bytes, dict[str, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def note(self, now: int, marks: tuple[Mark, ...], candidate_id: str) -> None:
        """The candidate computed or found all of this prompt: it holds every mark of it."""
        for digest, _ in marks:
            holders = self._holders.pop(digest, {})
            holders.pop(candidate_id, None)
            holders[candidate_id] = now
            while len(holders) > HELD_HOLDERS_MAX:
                del holders[next(iter(holders))]
            self._holders[digest] = holders
        while len(self._holders) > self._marks_max:
            self._holders.popitem(last=False)

    def miss(self, marks: tuple[Mark, ...], candidate_id: str, cached_tokens: int = 0) -> None:
        """The candidate turned out not to hold what lies deeper than `cached_tokens`."""
        for digest, tokens in marks:
            holders = self._holders.get(digest)
            if holders is not None and tokens > cached_tokens:
                holders.pop(candidate_id, None)
                if not holders:
                    del self._holders[digest]

    def tokens(self, now: int, marks: tuple[Mark, ...]) -> dict[str, int]:
        """Believed tokens of this prompt by candidate id; candidates that hold nothing are left out."""
        oldest = now - int(HELD_S * SECOND)
        found: dict[str, int] = {}
        for digest, tokens in reversed(marks):
            for candidate_id, noted_at in self._holders.get(digest, {}).items():
                if noted_at >= oldest:
                    found.setdefault(candidate_id, tokens)
        return found

    def forget(self, candidate_ids: set[str]) -> None:
        """Drop everything about candidates that are gone or began a new life."""
        for digest in list(self._holders):
            holders = self._holders[digest]
            for candidate_id in candidate_ids & holders.keys():
                del holders[candidate_id]
            if not holders:
                del self._holders[digest]
