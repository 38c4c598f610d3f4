"""The client's end of a stream of events: opened late enough to refuse by status, then never silent for long.

Headers go out with the first event that shows something. What keeps a connection alive is bytes, so a silence runs from
the last ones sent: events that a dialect does not show (hidden reasoning, the growing input of a free-form tool) leave a
silence a silence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import trio

from saiserve.api.http import Send
from saiserve.chat.events import AnswerEvent, AnswerFailed, Relayed, Started
from saiserve.errors import ApiError, ErrorKind

ROUTE_BYTES_MAX = 512


class Encoder(Protocol):
    """One dialect's stream as a state machine: canonical events in, bytes of server-sent events out."""

    def encode(self, event: AnswerEvent) -> bytes:
        """Return the events for one canonical event; may be empty. After a terminal event nothing more is sent."""
        ...

    def keepalive(self) -> bytes:
        """Return something harmless to send into a silence."""
        ...


class Outlet:
    """Writes one stream. Two tasks use it: one brings events, one fills silences; neither writes into the other's bytes."""

    def __init__(self, encoder: Encoder, send: Send, send_piece: Send | None = None) -> None:
        """`send_piece`, where there is one, is a shorter way for what lies between a reply's head and its end."""
        self._encoder = encoder
        self._encode = _Encoding(encoder)
        self._send = send
        self._send_piece = send_piece or send
        self._is_taking = False
        self._filling: trio.Event | None = None
        """While a silence is being filled; set when that is done."""
        self._route = ""
        self._waiting: list[AnswerEvent] = []
        self._is_open = False
        self._sent_at = trio.current_time()

    def note_route(self, route: str) -> None:
        """The answer was accepted; its headers say where."""
        self._route = route

    async def take(self, events: Iterable[AnswerEvent]) -> None:
        """Write events, once there is more than the news that the prompt was taken."""
        self._waiting += events
        if not (self._is_open or _shows(self._waiting)):
            return
        if self._filling is not None:
            await self._filling.wait()
        self._is_taking = True
        try:
            await self._write()
        finally:
            self._is_taking = False

    async def fill_silences(self, silence_s: float) -> None:
        """Write something harmless after each silence. One task a stream costs less than a deadline a token."""
        due = self._sent_at + silence_s
        while True:
            await trio.sleep_until(due)
            now = trio.current_time()
            if now < self._sent_at + silence_s:
                due = self._sent_at + silence_s
                continue
            due = now + silence_s
            if not self._is_taking:  # bytes that a slow client has not taken yet are no silence
                self._filling = trio.Event()
                await self._write(is_silent=True)
                self._filling.set()
                self._filling = None

    async def until_filled(self) -> None:
        """Wait for a comment that is being written: it is never left in its middle."""
        if self._filling is not None:
            await self._filling.wait()

    async def fail(self, error: ApiError) -> None:
        """Say in the stream that the answer ended too early.

        Raises:
            ApiError: the same one; nothing was sent yet, so that it has its status.
        """
        if not self._is_open:
            raise error
        await self.take([AnswerFailed(error)])

    async def close(self) -> None:
        """End the stream.

        Raises:
            ApiError: it was never opened.
        """
        if not self._is_open:
            raise ApiError(ErrorKind.INTERNAL, "The answer ended before it began.")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, *, is_silent: bool = False) -> None:
        waiting, self._waiting = self._waiting, []  # what an encoder fails at is not tried again
        data = b"".join(map(self._encode, waiting))
        if is_silent:
            data += self._encoder.keepalive()
        if not data:
            return
        if not self._is_open:
            self._is_open = True
            await self._send(_stream_start(self._route))
        await self._send_piece({"type": "http.response.body", "body": data, "more_body": True})
        self._sent_at = trio.current_time()


class _Encoding:
    """Events as the client's bytes: an upstream's own where it speaks the client's dialect, the encoder's otherwise."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._relays = False
        self._ended = False

    def __call__(self, event: AnswerEvent) -> bytes:
        """Return the bytes for one event."""
        match event:
            case Relayed():
                self._relays, self._ended = True, self._ended or event.is_end
                return event.data
            case Started(relayed=True):
                self._relays = True
                return b""
            case AnswerFailed() if not self._ended:
                return self._encoder.encode(event)
        return b"" if self._relays else self._encoder.encode(event)


def _shows(events: list[AnswerEvent]) -> bool:
    """Whether there is more than the news that the prompt was taken."""
    return any(not isinstance(event, Started) for event in events)


def _stream_start(route: str) -> dict[str, Any]:
    headers = [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ]
    if route:
        headers.append((b"x-sai-route", header_text(route)))
    return {"type": "http.response.start", "status": 200, "headers": headers}


def header_text(text: str) -> bytes:
    """Return `text` as a header value: printable ASCII only, bounded."""
    return "".join(sign if " " <= sign <= "~" else "?" for sign in text)[:ROUTE_BYTES_MAX].encode("ascii")
