"""Server-sent events as they arrive (WHATWG HTML §9.2.6): any bytes, cut anywhere, in bounded memory.

Each event keeps the bytes it came in, so that a relay sends exactly those, whole events at a time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from saiserve.limits import UPSTREAM_EVENT_BYTES_MAX

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


class EventTooLarge(Exception):  # noqa: N818  # what it is, not what to do
    """An event grew beyond its limit; the stream cannot be read on."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event, or a comment or other lines without data (`data` is None)."""

    raw: bytes
    data: bytes | None = None
    name: str = ""


class SseReader:
    """Feed it bytes; it returns the events they complete."""

    def __init__(self, limit: int = UPSTREAM_EVENT_BYTES_MAX) -> None:
        self._limit = limit
        self._buffer = bytearray()
        """Bytes of lines that have not ended."""
        self._raw = bytearray()
        """Bytes of the event so far, without the buffer."""
        self._data: list[bytes] = []
        self._name = b""
        self._is_first = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Take the next bytes.

        Raises:
            EventTooLarge: an event is over the limit.
        """
        self._buffer += chunk
        events: list[SseEvent] = []
        start = 0
        for end in _LINE_END.finditer(self._buffer):
            if end.group() == b"\r" and end.end() == len(self._buffer):
                break  # the line feed may still come
            if end.start() < start:
                continue
            event = self._line(bytes(self._buffer[start : end.start()]), bytes(end.group()))
            start = end.end()
            if event is not None:
                events.append(event)
        del self._buffer[:start]
        if len(self._buffer) + len(self._raw) > self._limit:
            raise EventTooLarge(f"an event of over {self._limit} bytes")
        return events

    def finish(self) -> list[SseEvent]:
        """What is left at the end: servers that leave out the last blank line are understood all the same."""
        events = []
        if self._buffer:
            line = bytes(self._buffer)
            event = self._line(line.rstrip(b"\r"), line[len(line.rstrip(b"\r")) :])
            self._buffer.clear()
            events = [event] if event is not None else []
        last = self._dispatch()
        return [*events, last] if last is not None else events

    def _line(self, line: bytes, end: bytes) -> SseEvent | None:
        self._raw += line + end
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        return None

    def _dispatch(self) -> SseEvent | None:
        raw, data, name = bytes(self._raw), self._data, self._name
        self._raw.clear()
        self._data, self._name = [], b""
        if not raw:
            return None
        return SseEvent(raw, b"\n".join(data) if data else None, name.decode("utf-8", "replace"))
