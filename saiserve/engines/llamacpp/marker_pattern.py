"""A regular expression that finds where any of many texts begins, at a price per character that is theirs, not their number.

Python's own alternation tries every text at each place; here texts with a common beginning share it, as in a tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

BRANCHINGS_MAX = 40
"""Branchings below one another; texts that need more are tried one by one, because patterns are read recursively."""


def starts_of(texts: Iterable[str]) -> str:
    """A pattern that matches the first character of each of the texts wherever it occurs, overlapping ones too.

    Args:
        texts: at least one, each of two characters or more.
    """
    shortest: list[str] = []
    for text in sorted(set(texts)):
        # A text that begins with another begins wherever that one does.
        if not shortest or not text.startswith(shortest[-1]):
            shortest.append(text)
    by_first = groupby(shortest, key=lambda text: text[0])
    return "|".join(f"{re.escape(first)}(?={_any([text[1:] for text in own], 0)})" for first, own in by_first)


def _any(texts: Sequence[str], depth: int) -> str:
    """A pattern of sorted texts, none of which begins with another."""
    if len(texts) == 1 or depth == BRANCHINGS_MAX:
        return "|".join(map(re.escape, texts))
    shared = _shared(texts[0], texts[-1])
    groups = groupby((text[shared:] for text in texts), key=lambda text: text[0])
    branches = [_any(list(group), depth + 1) for _, group in groups]
    return f"{re.escape(texts[0][:shared])}(?:{'|'.join(branches)})"


def _shared(first: str, last: str) -> int:
    """How many characters two texts begin with in common; of a sorted list's ends, what all of it shares."""
    return next(
        (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other),
        min(len(first), len(last)),
    )
