"""Tool calls out of streamed text: a state machine that never loses a character.

Text goes through at once, but for a tail that may be the start of a call. A call whose name comes before its arguments
is sent on as it grows, always the beginning of valid JSON and completed at its end; any other call is held
until it is whole, and comes out as text when it turns out to be none (docs/decisions/0122-tool-calls-as-they-grow.md).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence

from saiserve.chat.call_pieces import HELD_CHARACTERS_MAX, CallArguments, CallBegun, Piece, overlap
from saiserve.chat.json_scan import ObjectScanner
from saiserve.chat.request import Tool
from saiserve.chat.tool_formats import ToolFormat
from saiserve.chat.unmarked_calls import UnmarkedCalls
from saiserve.chat.whole_calls import DECODER, CallReader, is_open
from saiserve.chat.xml_scan import XmlScanner

_NAMED_ARGUMENTS = re.compile(r"\A\s*(?P<name>[A-Za-z0-9_.\-:/]+)\s*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?\s*(?=\{)")
_HEAD = re.compile(r'\A\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_XML_HEAD = re.compile(r"\A\s*<function=(?P<name>[^>\s]+)>")
_ARRAY_TAIL = re.compile(r"\A\s*(?P<brace>\}?)\s*(?P<sign>[,\]])")
_EMPTY_TAIL = re.compile(r"\A[\s}\],]*\Z")


class _State(enum.Enum):
    """Where the parser stands in a format with marks."""

    TEXT = "text"
    CALL = "behind an opener"
    ARGUMENTS = "in arguments that are sent on"
    TAIL = "behind such arguments"


class ToolCallParser:
    """Finds calls in one choice's text. With `parallel` False only the first call counts; what follows is dropped."""

    def __init__(self, tool_format: ToolFormat, tools: Sequence[Tool], *, parallel: bool = True) -> None:
        self._format = tool_format
        self._reader = CallReader(tools, known_only=not tool_format.opener)
        self._parallel = parallel
        self._held = ""
        self._state = _State.TEXT
        self._scanner: ObjectScanner | XmlScanner = ObjectScanner()
        self._in_array = False
        self._opened = ""
        """The opener with the newlines before it, in case it was text."""
        self._called = False
        self._is_dropping = False
        self._after_call = False
        self._unmarked = None if tool_format.opener else UnmarkedCalls(self._reader)
        self._steps: dict[_State, Callable[[], list[Piece] | None]] = {
            _State.TEXT: self._take_text,
            _State.CALL: self._take_call,
            _State.ARGUMENTS: self._take_arguments,
            _State.TAIL: self._take_array_tail if tool_format.array else self._take_tail,
        }

    def feed(self, text: str) -> list[Piece]:
        """Return what this text completes: pieces of plain text, whole calls, and pieces of one that grows, in order."""
        if self._unmarked is not None:
            return self._keep(self._unmarked.feed(text))
        self._held += text
        return self._keep(self._feed_marked())

    @property
    def held(self) -> int:
        """How many of the last characters fed are neither text nor part of a call yet."""
        if self._unmarked is not None:
            return self._unmarked.held
        return len(self._held) + (len(self._opened) if self._state is _State.CALL and not self._in_array else 0)

    @property
    def is_inside(self) -> bool:
        """Whether a call has begun and not ended."""
        if self._unmarked is not None:
            return self._unmarked.is_inside
        return self._state in {_State.CALL, _State.ARGUMENTS}

    def finish(self, *, is_cut: bool = False) -> list[Piece]:
        """Return what is left when no more text will come; arguments that are open are completed unless `is_cut`."""
        if self._unmarked is not None:
            return self._keep(self._unmarked.finish(is_cut=is_cut))
        held, self._held = self._held, ""
        if self._state is _State.ARGUMENTS:
            return [] if is_cut else self._keep([CallArguments(self._scanner.completion())])
        if self._state is _State.TAIL:
            rest = held[: len(held) - overlap(held, self._format.closer)]
            return self._keep([] if _EMPTY_TAIL.match(rest) else [held])
        if self._state is _State.CALL:
            return self._keep(list(self._reader.calls_in(held)) or [self._opened + held])
        return self._keep([held])

    def _keep(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces that count; without parallel calls none after the first call."""
        kept: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, CallArguments):
                if piece.text and not self._is_dropping:
                    kept.append(piece)
            elif self._called and not self._parallel:
                self._is_dropping = self._is_dropping or isinstance(piece, CallBegun)
            elif piece:
                kept.append(piece)
                self._called = self._called or not isinstance(piece, str)
        return kept

    def _feed_marked(self) -> list[Piece]:
        """Take what each state can, until one waits for more."""
        pieces: list[Piece] = []
        while (taken := self._steps[self._state]()) is not None:
            pieces += taken
        return pieces

    def _take_text(self) -> list[Piece] | None:
        """Return the text up to an opener, or up to what may begin one; newlines around calls are not text."""
        if self._after_call:
            self._held = self._held.lstrip("\n")
            self._after_call = not self._held
        before, found, after = self._held.partition(self._format.opener)
        if found:
            self._held = after
            self._state = _State.CALL
            said = before.rstrip("\n")
            self._opened = before[len(said) :] + self._format.opener
            return [said]
        keep = overlap(self._held, self._format.opener)
        ready = self._held[: len(self._held) - keep].rstrip("\n")
        self._held = self._held[len(ready) :]
        return [ready] if ready else None

    def _take_call(self) -> list[Piece] | None:
        """Return the call at the head of the held text, or the text it turned out to be; None while it is open."""
        if begun := self._take_head():
            return begun
        closer = self._format.closer
        if not closer:
            return self._take_array()
        end = self._held.find(closer)
        while end >= 0:
            body = self._held[:end]
            calls = self._reader.calls_in(body)
            if calls or not is_open(body):
                self._leave(self._held[end + len(closer) :], called=bool(calls))
                return list(calls) or [self._opened + body + closer]
            end = self._held.find(closer, end + len(closer))
        return self._give_up_if_too_long()

    def _take_head(self) -> list[Piece]:
        """Return the beginning of a call whose arguments can be sent on as they come; nothing when it is none."""
        if not self._format.array and (function := _XML_HEAD.match(self._held)):
            self._held = self._held[function.end() :]
            self._scanner = XmlScanner(self._reader.properties_of(function["name"]))
            self._state = _State.ARGUMENTS
            return [CallBegun(function["name"])]
        text = self._held.lstrip() if self._format.array else self._held
        is_list = self._format.array and text.startswith("[")
        match = _HEAD.match(text, 0) if not is_list else _HEAD.match(text[1:])
        if match is None and self._format.array and not self._in_array:
            match = _NAMED_ARGUMENTS.match(text)
        if match is None:
            return []
        self._in_array = self._in_array or is_list
        self._held = (text[1:] if is_list else text)[match.end() :]
        self._scanner = ObjectScanner()
        self._state = _State.ARGUMENTS
        return [CallBegun(match["name"])]

    def _take_arguments(self) -> list[Piece] | None:
        sent, self._held = self._scanner.feed(self._held)
        if not (self._scanner.is_done or self._scanner.is_broken):
            return [CallArguments(sent)] if sent else None
        self._state = _State.TAIL
        return [CallArguments(sent + self._scanner.completion())]

    def _take_tail(self) -> list[Piece] | None:
        """Drop what stands between arguments and closer: the end of the object, or the rest of a broken one."""
        _, found, after = self._held.partition(self._format.closer)
        if found:
            self._leave(after, called=True)
            return []
        if len(self._held) > HELD_CHARACTERS_MAX:
            text, self._held, self._state = self._held, "", _State.TEXT
            return [text]
        return None

    def _take_array_tail(self) -> list[Piece] | None:
        """Go on to the next call of an array, or leave it; a named call stands alone."""
        match = _ARRAY_TAIL.match(self._held)
        if not self._in_array:
            self._leave(self._held, called=True)
        elif match is not None:
            self._held = self._held[match.end() :]
            if match["sign"] == ",":
                self._state = _State.CALL
            else:
                self._leave(self._held, called=True)
        elif re.fullmatch(r"\s*\}?\s*", self._held):
            return None
        else:
            self._leave(self._held, called=True)
        return []

    def _leave(self, rest: str, *, called: bool) -> None:
        self._held = rest
        self._state = _State.TEXT
        self._in_array = False
        self._after_call = called

    def _take_array(self) -> list[Piece] | None:
        """Mistral's calls: an array after the opener, or a name and its object."""
        text = self._held.lstrip()
        named = _NAMED_ARGUMENTS.match(text)
        if text and text[0] not in "[{" and named is None and ("{" in text or "\n" in text):
            return self._as_text()
        start = named.end() if named else 0
        try:
            value, end = DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return self._give_up_if_too_long()
        calls = self._reader.calls_of({"name": named["name"], "arguments": value} if named else value)
        if not calls:
            return self._as_text()
        if self._in_array:
            self._held, self._state = text[end:], _State.TAIL
        else:
            self._leave(text[end:], called=True)
        return list(calls)

    def _give_up_if_too_long(self) -> list[Piece] | None:
        return self._as_text() if len(self._held) > HELD_CHARACTERS_MAX else None

    def _as_text(self) -> list[Piece]:
        """The opener was text; what follows it may still hold a call."""
        self._state, self._in_array = _State.TEXT, False
        return [self._opened]
