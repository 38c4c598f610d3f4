"""One JSON object out of streamed text, character by character: what was let through is always the beginning of valid JSON.

RFC 8259's grammar as a stack machine. What could still turn out invalid (a number, a literal, an escape, a comma) waits
until it is complete; `completion` ends the object from wherever it stands. A raw control character in a string, which
models write for line breaks, goes out escaped.
"""

from __future__ import annotations

import enum
import json
import re
from typing import Final

DEPTH_MAX: Final = 64
SCALAR_CHARACTERS_MAX: Final = 400
"""A longer number is none."""

_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_SCALAR_SIGNS = frozenset("-+.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_BLANKS = frozenset(" \t\n\r")
_CLOSERS = {"{": "}", "[": "]"}


class _At(enum.Enum):
    """What may come next."""

    VALUE = "value"
    FIRST_VALUE = "first value or end of array"
    KEY = "key"
    FIRST_KEY = "first key or end of object"
    COLON = "colon"
    NEXT = "comma or end"
    STRING = "in a string"
    ESCAPE = "in an escape"
    SCALAR = "in a number or literal"


class ObjectScanner:
    """Feed it text from the opening brace on. After `is_done` or `is_broken` nothing more is taken."""

    def __init__(self) -> None:
        self.is_done = False
        self.is_broken = False
        self._at = _At.VALUE
        self._stack: list[str] = []
        self._is_key = False
        self._waiting = ""

    def feed(self, text: str) -> tuple[str, str]:
        """Return what may be sent on, and the text that was not taken."""
        out: list[str] = []
        for place, sign in enumerate(text):
            if self.is_done or self.is_broken:
                return "".join(out), text[place:]
            let = self._step(sign)
            if let is None:
                self.is_broken = True
                return "".join(out), self._waiting.lstrip(", \t\n\r") + text[place:]
            out.append(let)
        return "".join(out), ""

    def completion(self) -> str:
        """Return the shortest text that makes what was sent on valid; empty when it is."""
        if self.is_done:
            return ""
        if not self._stack:
            return "{}"
        closing = ""
        if self._at in (_At.STRING, _At.ESCAPE):
            closing = '"' + (": null" if self._is_key else "")
        elif self._at is _At.COLON:
            closing = ": null"
        elif self._at in (_At.VALUE, _At.SCALAR) and self._stack[-1] == "{":
            closing = "null"
        return closing + "".join(_CLOSERS[opened] for opened in reversed(self._stack))

    def _step(self, sign: str) -> str | None:
        """Take one character; None when it cannot stand here."""
        if self._at is _At.STRING:
            return self._in_string(sign)
        if self._at is _At.ESCAPE:
            return self._in_escape(sign)
        if self._at is _At.SCALAR:
            if sign in _SCALAR_SIGNS and len(self._waiting) < SCALAR_CHARACTERS_MAX:
                self._waiting += sign
                return ""
            ends = sign in _BLANKS or sign in (",", _CLOSERS[self._stack[-1]])
            if not (ends and _SCALAR.fullmatch(self._waiting.lstrip(", \t\n\r"))):
                return None
            self._at = _At.NEXT
            scalar = self._released("")
            let = self._step(sign)
            return None if let is None else scalar + let
        if sign in _BLANKS:
            if self._waiting:
                self._waiting += sign
                return ""
            return sign
        return self._between(sign)

    def _between(self, sign: str) -> str | None:
        at = self._at
        if sign == '"' and at is not _At.COLON and at is not _At.NEXT:
            self._is_key = at in (_At.KEY, _At.FIRST_KEY)
            self._at = _At.STRING
            return self._released(sign)
        if at is _At.COLON and sign == ":":
            self._at = _At.VALUE
            return sign
        if at is _At.NEXT and sign == ",":
            self._at = _At.KEY if self._stack[-1] == "{" else _At.VALUE
            self._waiting = sign
            return ""
        if sign in "}]" and at in (_At.NEXT, _At.FIRST_KEY, _At.FIRST_VALUE):
            return self._close(sign)
        if at in (_At.VALUE, _At.FIRST_VALUE):
            return self._value(sign)
        return None

    def _value(self, sign: str) -> str | None:
        if sign in _CLOSERS:
            if len(self._stack) >= DEPTH_MAX or (not self._stack and sign != "{"):
                return None
            self._stack.append(sign)
            self._at = _At.FIRST_KEY if sign == "{" else _At.FIRST_VALUE
            return self._released(sign)
        if sign in _SCALAR_SIGNS and self._stack:
            self._at = _At.SCALAR
            self._waiting += sign
            return ""
        return None

    def _close(self, sign: str) -> str | None:
        if _CLOSERS[self._stack[-1]] != sign:
            return None
        self._stack.pop()
        self._at = _At.NEXT
        self.is_done = not self._stack
        return sign

    def _in_string(self, sign: str) -> str:
        if sign == "\\":
            self._at, self._waiting = _At.ESCAPE, sign
            return ""
        if sign == '"':
            self._at = _At.COLON if self._is_key else _At.NEXT
            return sign
        return sign if sign >= " " else json.dumps(sign)[1:-1]

    def _in_escape(self, sign: str) -> str | None:
        self._waiting += sign
        if self._waiting[1] == "u":
            if len(self._waiting) > 2 and sign not in "0123456789abcdefABCDEF":
                return self._mended_escape()
            if len(self._waiting) < 6:
                return ""
        elif self._waiting[1] not in '"\\/bfnrt':
            return self._mended_escape()
        self._at = _At.STRING
        return self._released("")

    def _mended_escape(self) -> str:
        r"""A backslash that escapes nothing is a backslash: models write `\d` for a pattern."""
        rest, self._waiting = self._waiting[1:], ""
        self._at = _At.STRING
        out = "\\\\"
        for sign in rest:
            out += self._in_string(sign)
        return out

    def _released(self, sign: str) -> str:
        waiting, self._waiting = self._waiting, ""
        return waiting + sign
