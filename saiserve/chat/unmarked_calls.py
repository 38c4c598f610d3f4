"""Calls that nothing marks: Llama 3's and plain JSON. Text is one only when it begins with one.

Once the beginning names a tool and opens its arguments, it is a call and grows; other orders of keys are held until
the answer ends, and come out as text when they turn out to be none.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable

from saiserve.chat.call_pieces import HELD_CHARACTERS_MAX, CallArguments, CallBegun, Piece
from saiserve.chat.json_scan import ObjectScanner
from saiserve.chat.whole_calls import DECODER, PYTHON_TAG, CallReader

OPENINGS = ("{", "[", "```", PYTHON_TAG)
"""What text that may be a call begins with."""
REST_CHARACTERS_MAX = 400
"""Longest rest of a call's object behind its arguments."""

_FRONT = re.compile(r"\s*(?:<\|python_tag\|>)?\s*(?P<fence>```(?:json|tool_call|tool_code)?\s*\n)?\s*(?P<array>\[)?\s*")
_TYPE = r'(?:"type"\s*:\s*"function"\s*,\s*)?'
_HEAD = re.compile(
    rf'\{{\s*{_TYPE}"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*{_TYPE}"(?:arguments|parameters)"\s*:\s*(?=\{{)'
)
_REST = re.compile(r'\s*(?:,\s*"[^"\\]*"\s*:\s*"[^"\\]*"\s*)*\}')
_BETWEEN = re.compile(r"[\s;,]*")
_NOTHING = re.compile(r"[\s}\];,`]*\Z")


class _At(enum.Enum):
    """Where the text stands."""

    BEGINNING = "it may still be a call"
    ARGUMENTS = "in arguments that are sent on"
    REST = "behind such arguments, in the call's object"
    NEXT = "behind a call"
    DROPPED = "behind a call that broke"
    TEXT = "in text"


class UnmarkedCalls:
    """One choice's text. See `saiserve.chat.tool_parser.ToolCallParser`."""

    def __init__(self, reader: CallReader) -> None:
        self._reader = reader
        self._held = ""
        self._at = _At.BEGINNING
        self._scanner = ObjectScanner()
        self._in_array = False
        self._in_fence = False
        self._steps: dict[_At, Callable[[], list[Piece] | None]] = {
            _At.BEGINNING: self._begin,
            _At.ARGUMENTS: self._take_arguments,
            _At.REST: self._take_rest,
            _At.NEXT: self._take_next,
            _At.DROPPED: self._drop,
            _At.TEXT: self._take_text,
        }

    @property
    def held(self) -> int:
        """How many of the last characters fed are neither text nor part of a call yet."""
        return len(self._held)

    @property
    def is_inside(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._at is _At.ARGUMENTS

    def feed(self, text: str) -> list[Piece]:
        """Return what this text completes."""
        self._held += text
        pieces: list[Piece] = []
        while (taken := self._steps[self._at]()) is not None:
            pieces += taken
        return pieces

    def finish(self, *, is_cut: bool) -> list[Piece]:
        """Return what is left when no more text will come."""
        held, self._held = self._held, ""
        if self._at is _At.ARGUMENTS:
            return [] if is_cut else [CallArguments(self._scanner.completion())]
        if self._at is not _At.BEGINNING and _NOTHING.match(held):
            return []
        return list(self._reader.calls_in(held)) or [held]

    def _begin(self) -> list[Piece] | None:
        front = _FRONT.match(self._held)
        assert front is not None
        if begun := self._call_at(front.end()):
            self._in_array, self._in_fence = bool(front["array"]), bool(front["fence"])
            return begun
        start = self._held.lstrip()
        if not start or any(opening.startswith(start) for opening in OPENINGS):
            return None
        if start.startswith(OPENINGS) and len(self._held) <= HELD_CHARACTERS_MAX:
            return None
        self._at = _At.TEXT
        return []

    def _call_at(self, place: int) -> list[Piece]:
        """Return the beginning of a call of a known tool that stands there; nothing when there is none."""
        head = _HEAD.match(self._held, place)
        if head is None or not self._reader.knows(head["name"]):
            return []
        self._held, self._at, self._scanner = self._held[head.end() :], _At.ARGUMENTS, ObjectScanner()
        return [CallBegun(head["name"])]

    def _take_arguments(self) -> list[Piece] | None:
        sent, self._held = self._scanner.feed(self._held)
        if not (self._scanner.is_done or self._scanner.is_broken):
            return [CallArguments(sent)] if sent else None
        self._at = _At.REST if self._scanner.is_done else _At.DROPPED
        return [CallArguments(sent + self._scanner.completion())]

    def _take_rest(self) -> list[Piece] | None:
        rest = _REST.match(self._held)
        if rest is not None and rest.end() <= REST_CHARACTERS_MAX:
            self._held, self._at = self._held[rest.end() :], _At.NEXT
            return []
        if len(self._held) <= REST_CHARACTERS_MAX:
            return None
        self._at = _At.TEXT
        return []

    def _take_next(self) -> list[Piece] | None:
        """Go on to the next call, or to the text that follows."""
        between = _BETWEEN.match(self._held)
        assert between is not None
        rest = self._held[between.end() :]
        if rest.startswith("{"):
            return self._call_at(between.end()) or self._whole_call(rest)
        if not rest or (self._in_fence and "```".startswith(rest)):
            return self._close_fence(rest) if rest == "```" else None
        if rest.startswith("]") and self._in_array:
            self._held, self._in_array = rest[1:], False
            return []
        if rest.startswith("```") and self._in_fence:
            return self._close_fence(rest)
        self._held, self._at = rest, _At.TEXT
        return []

    def _close_fence(self, rest: str) -> list[Piece]:
        self._held, self._in_fence = rest[3:], False
        return []

    def _whole_call(self, rest: str) -> list[Piece] | None:
        """Return a call that shows only as a whole; None while its object is open."""
        try:
            value, end = DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            return None
        calls = self._reader.calls_of(value)
        if not calls:
            self._held, self._at = rest, _At.TEXT
            return []
        self._held = rest[end:]
        return list(calls)

    def _drop(self) -> list[Piece] | None:
        self._held = ""
        return None

    def _take_text(self) -> list[Piece] | None:
        text, self._held = self._held, ""
        return [text] if text else None
