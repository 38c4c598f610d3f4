"""Arguments written as Qwen's XML, as the JSON object they mean, sent on as they grow.

A parameter whose schema says string goes out character by character, because it stands as it is; any other is JSON or
text, which only its end tells, so it waits for that. Of two parameters of one name the first counts.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from saiserve.chat.call_pieces import HELD_CHARACTERS_MAX, overlap
from saiserve.chat.whole_calls import xml_value

PARAMETER: Final = "<parameter="
PARAMETER_END: Final = "</parameter>"
ENDS: Final = ("</function>", "</tool_call>")
"""What ends the arguments; models forget the first."""
NAME_CHARACTERS_MAX: Final = 200


class _At(enum.Enum):
    """Where the text stands."""

    BETWEEN = "between parameters"
    NAME = "in a name"
    START = "behind a name"
    STRING = "in a value that is sent on"
    HELD = "in a value that waits"
    REPEATED = "in a value that does not count"


class XmlScanner:
    """Feed it the text behind `<function=NAME>`; see `saiserve.chat.json_scan.ObjectScanner`, whose shape it has."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.is_done = False
        self.is_broken = False
        self._properties = properties
        self._at = _At.BETWEEN
        self._name = ""
        self._seen: set[str] = set()
        self._has_sent = False
        self._held = ""
        self._steps: dict[_At, Callable[[], str | None]] = {
            _At.BETWEEN: self._between,
            _At.NAME: self._read_name,
            _At.START: self._start,
            _At.STRING: self._string,
            _At.HELD: self._value,
            _At.REPEATED: self._value,
        }

    def feed(self, text: str) -> tuple[str, str]:
        """Return what may be sent on, and the text that was not taken."""
        self._held += text
        out = ""
        while not (self.is_done or self.is_broken):
            sent = self._steps[self._at]()
            if sent is None:
                return out, ""
            out += sent
        rest, self._held = self._held, ""
        return out, rest

    def completion(self) -> str:
        """Return the shortest text that makes what was sent on a JSON object; empty when it is."""
        if self.is_done:
            return ""
        return ('"' if self._at is _At.STRING else "") + ("}" if self._has_sent else "{}")

    def _between(self) -> str | None:
        """Skip to the next mark: what stands between parameters means nothing."""
        place = self._held.find("<")
        self._held = self._held[place:] if place >= 0 else ""
        if self._held.startswith(PARAMETER):
            self._held, self._at = self._held[len(PARAMETER) :], _At.NAME
            return ""
        if self._held.startswith(ENDS):
            self._held = self._held.removeprefix(ENDS[0])
            self.is_done = True
            return "}" if self._has_sent else "{}"
        if not self._held or any(mark.startswith(self._held) for mark in (PARAMETER, *ENDS)):
            return None
        self._held = self._held[1:]
        return ""

    def _read_name(self) -> str | None:
        name, found, rest = self._held.partition(">")
        if len(name) > NAME_CHARACTERS_MAX:
            self.is_broken = True
        if not found:
            return "" if self.is_broken else None
        self._name, self._held, self._at = name, rest, _At.START
        return ""

    def _start(self) -> str | None:
        """Drop the line end behind a name; it belongs to no value."""
        if not self._held:
            return None
        self._held = self._held.removeprefix("\n")
        if self._name in self._seen:
            self._at = _At.REPEATED
            return ""
        self._seen.add(self._name)
        schema = self._properties.get(self._name)
        if isinstance(schema, dict) and schema.get("type") == "string":
            self._at = _At.STRING
            return self._key() + '"'
        self._at = _At.HELD
        return ""

    def _string(self) -> str | None:
        value, found, rest = self._held.partition(PARAMETER_END)
        if found:
            self._held, self._at = rest, _At.BETWEEN
            return _escaped(value.removesuffix("\n")) + '"'
        keep = max(overlap(self._held, PARAMETER_END), overlap(self._held, "\n" + PARAMETER_END))
        ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return _escaped(ready) or None

    def _value(self) -> str | None:
        value, found, rest = self._held.partition(PARAMETER_END)
        if not found:
            self.is_broken = len(self._held) > HELD_CHARACTERS_MAX
            return "" if self.is_broken else None
        is_repeated = self._at is _At.REPEATED
        self._held, self._at = rest, _At.BETWEEN
        if is_repeated:
            return ""
        meant = xml_value(value.removesuffix("\n"), self._properties.get(self._name, {}))
        return self._key() + _json(meant)

    def _key(self) -> str:
        opening = ", " if self._has_sent else "{"
        self._has_sent = True
        return f"{opening}{_json(self._name)}: "


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or _is_unicode(text) else json.dumps(value)


def _escaped(text: str) -> str:
    return _json(text)[1:-1]


def _is_unicode(text: str) -> bool:
    return text == text.encode("utf-8", "replace").decode()
