"""Tool calls out of streamed text: a state machine that never loses a character.

Text goes through at once, but for a tail that may be the start of a call. A call is held until its JSON is complete,
so that what is sent on is always whole and valid; one that turns out to be no call, or is cut, comes out as text
(docs/decisions/0082-whole-tool-calls.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from saiserve.chat.request import Tool
from saiserve.chat.tool_formats import ToolFormat

HELD_CHARACTERS_MAX = 1_048_576
"""A call longer than this is text."""
PYTHON_TAG = "<|python_tag|>"

_FENCE = re.compile(r"\A\s*```(?:json|tool_call|tool_code)?\s*\n(?P<body>.*?)\n?```\s*\Z", re.DOTALL)
_XML_CALL = re.compile(r"<function=(?P<name>[^>\s]+)>\s*(?P<body>.*?)\s*</function>", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=(?P<name>[^>]+)>\n?(?P<value>.*?)\n?</parameter>", re.DOTALL)
_NAMED_ARGUMENTS = re.compile(r"\A\s*(?P<name>[A-Za-z0-9_.\-:/]+)\s*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?\s*(?=\{)")
_QUOTE = re.compile(r'(?<!\\)(?:\\\\)*"')


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One complete call; `arguments` is a JSON object's text."""

    name: str
    arguments: str


Piece = str | ParsedCall


class ToolCallParser:
    """Finds calls in one choice's text. With `parallel` False only the first call counts; what follows is dropped."""

    def __init__(self, tool_format: ToolFormat, tools: Sequence[Tool], *, parallel: bool = True) -> None:
        self._format = tool_format
        self._tools = {tool.name: tool for tool in tools}
        self._parallel = parallel
        self._held = ""
        self._inside = False
        self._called = False
        self._after_call = False
        self._decided_text = False
        self._feed: Callable[[], list[Piece]] = self._feed_marked if tool_format.opener else self._feed_unmarked

    def feed(self, text: str) -> list[Piece]:
        """Return what this text completes: pieces of plain text and whole calls, in order."""
        self._held += text
        return self._keep(self._feed())

    def finish(self) -> list[Piece]:
        """Return what is left when no more text will come."""
        held, self._held = self._held, ""
        if self._inside or (not self._format.opener and not self._decided_text):
            if calls := self._calls_in(held):
                return self._keep(list(calls))
            held = (self._format.opener if self._inside else "") + held
        return self._keep([held])

    def _keep(self, pieces: list[Piece]) -> list[Piece]:
        kept: list[Piece] = []
        for piece in pieces:
            if not piece or (self._called and not self._parallel):
                continue
            kept.append(piece)
            self._called = self._called or isinstance(piece, ParsedCall)
        return kept

    def _feed_marked(self) -> list[Piece]:
        pieces: list[Piece] = []
        while True:
            if not self._inside:
                pieces.append(self._take_text())
                if not self._inside:
                    return pieces
            taken = self._take_call()
            if taken is None:
                return pieces
            pieces += taken

    def _take_text(self) -> str:
        """Return the text up to an opener, or up to what may begin one; newlines around calls are not text."""
        if self._after_call:
            self._held = self._held.lstrip("\n")
            self._after_call = not self._held
        before, found, after = self._held.partition(self._format.opener)
        if found:
            self._held = after
            self._inside = True
            return before.rstrip("\n")
        keep = overlap(self._held, self._format.opener)
        ready = self._held[: len(self._held) - keep].rstrip("\n")
        self._held = self._held[len(ready) :]
        return ready

    def _take_call(self) -> list[Piece] | None:
        """Return the call at the head of the held text, or the text it turned out to be; None while it is open."""
        closer = self._format.closer
        if not closer:
            return self._take_array()
        end = self._held.find(closer)
        while end >= 0:
            body = self._held[:end]
            calls = self._calls_in(body)
            if calls or not _is_open(body):
                self._leave(self._held[end + len(closer) :], called=bool(calls))
                return list(calls) or [self._format.opener + body + closer]
            end = self._held.find(closer, end + len(closer))
        return self._give_up_if_too_long()

    def _leave(self, rest: str, *, called: bool) -> None:
        self._held = rest
        self._inside = False
        self._after_call = called

    def _take_array(self) -> list[Piece] | None:
        """Mistral's calls: an array after the opener, or a name and its object."""
        text = self._held.lstrip()
        named = _NAMED_ARGUMENTS.match(text)
        if text and text[0] not in "[{" and named is None and ("{" in text or "\n" in text):
            return self._as_text()
        start = named.end() if named else 0
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return self._give_up_if_too_long()
        calls = self._calls_of({"name": named["name"], "arguments": value} if named else value)
        if not calls:
            return self._as_text()
        self._leave(text[end:], called=True)
        return list(calls)

    def _give_up_if_too_long(self) -> list[Piece] | None:
        return self._as_text() if len(self._held) > HELD_CHARACTERS_MAX else None

    def _as_text(self) -> list[Piece]:
        text, self._held, self._inside = self._format.opener + self._held, "", False
        return [text]

    def _feed_unmarked(self) -> list[Piece]:
        """Hold everything while it may still be a call from its first character on."""
        if self._decided_text:
            text, self._held = self._held, ""
            return [text]
        start = self._held.lstrip()
        openings = ("{", "[", "```", PYTHON_TAG)
        if not start or any(opening.startswith(start) for opening in openings):
            return []
        if not start.startswith(openings) or len(self._held) > HELD_CHARACTERS_MAX:
            self._decided_text = True
            text, self._held = self._held, ""
            return [text]
        return []

    def _calls_in(self, text: str) -> tuple[ParsedCall, ...]:
        """Return the calls a whole text is, if it is nothing but calls."""
        text = text.strip().removeprefix(PYTHON_TAG).strip()
        fenced = _FENCE.match(text)
        if fenced:
            text = fenced["body"].strip()
        if text.startswith("<function="):
            return self._xml_calls(text)
        calls: list[ParsedCall] = []
        at = 0
        while at < len(text):
            try:
                value, at = _DECODER.raw_decode(text, at)
            except (ValueError, RecursionError):
                return ()
            found = self._calls_of(value)
            if not found:
                return ()
            calls += found
            while at < len(text) and text[at] in "; \n\t,":
                at += 1
        return tuple(calls)

    def _calls_of(self, value: Any) -> tuple[ParsedCall, ...]:
        """Return the calls a JSON value means; none when it means something else."""
        items = value if isinstance(value, list) else [value]
        calls = [self._call_of(item) for item in items]
        whole = tuple(call for call in calls if call is not None)
        return whole if len(whole) == len(items) else ()

    def _call_of(self, item: Any) -> ParsedCall | None:
        if not isinstance(item, dict):
            return None
        if isinstance(item.get("function"), dict):
            item = item["function"]
        name = item.get("name")
        arguments = item.get("arguments", item.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = _DECODER.decode(arguments)
            except (ValueError, RecursionError):
                return None
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        if not self._format.opener and name not in self._tools:
            return None
        return _whole_call(name, arguments)

    def _xml_calls(self, text: str) -> tuple[ParsedCall, ...]:
        calls: list[ParsedCall] = []
        for match in _XML_CALL.finditer(text):
            tool = self._tools.get(match["name"])
            schema = tool.parameters.get("properties", {}) if tool is not None else {}
            arguments = {
                parameter["name"]: _xml_value(parameter["value"], schema.get(parameter["name"], {}))
                for parameter in _XML_PARAMETER.finditer(match["body"])
            }
            call = _whole_call(match["name"], arguments)
            if call is not None:
                calls.append(call)
        return tuple(calls)


def _xml_value(text: str, schema: Any) -> Any:
    """Return a parameter's value: text where the schema says string, JSON where it parses, else text."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return text


def _whole_call(name: str, arguments: dict[str, Any]) -> ParsedCall | None:
    """Return a call that is valid JSON in valid Unicode; None for one that cannot be."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        if not text.isascii() and text != text.encode("utf-8", "replace").decode():
            text = json.dumps(arguments, allow_nan=False)
        name.encode()
    except (ValueError, RecursionError):
        return None
    return ParsedCall(name, text)


def _is_open(body: str) -> bool:
    """Whether a closer after `body` would stand inside it: in a string of JSON, or before the function's end."""
    text = body.lstrip()
    if text.startswith("<function="):
        return "</function>" not in text
    return text.startswith(("{", "[")) and len(_QUOTE.findall(text)) % 2 == 1


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest tail of `text` that begins `mark` without being all of it."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0
