"""Drafts without a draft model: what followed the last words when they were seen before, in prompt or answer. Pure.

Prompt lookup (Saxena 2023): answers that quote, edit or list what they were given repeat it at length.
"""

from __future__ import annotations

from array import array
from itertools import takewhile

from saiserve.engines.llamacpp.kv import IMAGE_IDS_FIRST

GRAM = 3
"""Tokens that must be alike for what followed them to be proposed."""
DRAFT_FIRST, DRAFT_MAX = 3, 32
"""Tokens proposed at first, and at most: as many again each time all were right."""
REST = 8
"""Tokens drawn without a draft after one that was wrong from its first token."""


class Lookup:
    """One stream's memory of where each run of `GRAM` tokens went on, and how well that served."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}
        self._seen = GRAM - 1
        """Runs that end before this place are known."""
        self._length = DRAFT_FIRST
        self._rest_until = 0

    def propose(self, tokens: array[int], most: int) -> tuple[int, ...]:
        """What may follow `tokens`, at most so many and no image; empty when nothing is known or drafts were wrong."""
        count = len(tokens)
        for end in range(self._seen, count - 1):
            self._next[tuple(tokens[end - GRAM + 1 : end + 1])] = end + 1
        self._seen = max(self._seen, count - 1)
        if count < GRAM or count < self._rest_until:
            return ()
        start = self._next.get(tuple(tokens[count - GRAM :]))
        if start is None:
            return ()
        draft = tokens[start : start + max(0, min(self._length, most))]
        return tuple(takewhile(lambda token: token < IMAGE_IDS_FIRST, draft))

    def judge(self, count: int, drafted: int, right: int) -> None:
        """Of `drafted` tokens so many were `right`; `count` tokens are there now."""
        if right == drafted:
            self._length = min(2 * self._length, DRAFT_MAX)
        else:
            self._length = max(right, 1)
            if right == 0:
                self._rest_until = count + REST
