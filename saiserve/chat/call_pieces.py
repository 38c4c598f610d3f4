"""What parsers of tool calls say: text, whole calls, and calls that grow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HELD_CHARACTERS_MAX: Final = 1_048_576
"""What is longer than this and still may be a call is text."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One complete call; `arguments` is a JSON object's text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call whose arguments follow piece by piece."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments of the call that has begun."""

    text: str


Piece = str | ParsedCall | CallBegun | CallArguments


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest tail of `text` that begins `mark` without being all of it."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0
