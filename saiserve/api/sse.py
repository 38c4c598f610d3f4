"""Server-sent events (WHATWG HTML §9.2) from an answer: opened late enough to refuse by status, then never silent.

Theory: a producer task holds the answer open and feeds a bounded channel; the sender takes from it, each event flushed
as it comes. Headers go out with the first event that shows something, so a fault before has its HTTP status; when nothing was sent
within the keep-alive interval they go out alone, with a comment, and later faults take the dialect's in-stream form.
What keeps a connection alive is bytes, so the interval runs from the last ones sent: events that a dialect does not show
(hidden reasoning, the growing input of a free-form tool) leave a silence a silence.
Leaving the nursery, by the end or by the client's going, closes the answer and with it the generation.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import trio

from saiserve import limits
from saiserve.api.http import Call, Reply, Send, send_reply
from saiserve.api.prepare import Prepared
from saiserve.api.service import Answer, Answering
from saiserve.channels import put
from saiserve.chat.events import AnswerEvent, AnswerFailed, Relayed, Started
from saiserve.errors import ApiError, ErrorKind

logger = logging.getLogger("saiserve.api")

COMMENT = b":\n\n"
"""A comment: keeps the way open, means nothing."""

Parse = Callable[[AnswerEvent], "list[AnswerEvent]"]


class Encoder(Protocol):
    """One dialect's stream as a state machine: canonical events in, bytes of server-sent events out."""

    def encode(self, event: AnswerEvent) -> bytes:
        """Return the events for one canonical event; may be empty. After a terminal event nothing more is sent."""
        ...

    def keepalive(self) -> bytes:
        """Return something harmless to send into a silence."""
        ...


class Collector(Protocol):
    """One dialect's whole reply, gathered from canonical events."""

    def add(self, event: AnswerEvent) -> None:
        """Take in one event; never an `AnswerFailed`."""
        ...

    def body(self) -> Any:
        """Return the reply's JSON value, once all events are in."""
        ...


def event(data: Any, name: str = "") -> bytes:
    """Return one server-sent event with JSON data, named when the dialect names its events."""
    payload = msgspec.json.encode(data)
    return b"event: %s\ndata: %s\n\n" % (name.encode(), payload) if name else b"data: %s\n\n" % payload


@dataclass(frozen=True, slots=True)
class _Opened:
    """The answer was accepted; what its header says."""

    route: str


class _Silence:
    """Nothing was sent for the keep-alive interval."""


_Item = _Opened | _Silence | AnswerEvent


async def _produce(service: Answering, prepared: Prepared, channel: trio.MemorySendChannel[_Item]) -> None:
    """Feed the channel with one answer, parsed; every fault becomes an `AnswerFailed`."""
    async with channel:
        try:
            async with service.answer(prepared.request) as answer:
                await channel.send(_Opened(answer.route))
                await _pass_on(answer, prepared.parse, channel)
        except ApiError as error:
            await channel.send(AnswerFailed(prepared.explain(error)))
        except trio.BrokenResourceError:
            return
        except Exception:
            logger.exception("answer to %s failed", prepared.request.id)
            await channel.send(AnswerFailed(ApiError(ErrorKind.INTERNAL, "The server made a mistake; it is logged.")))


async def _pass_on(answer: Answer, parse: Parse, channel: trio.MemorySendChannel[_Item]) -> None:
    try:
        async for raw in answer.events:
            for parsed in parse(raw):
                await put(channel, parsed)
    finally:
        # A generator left unfinished would be closed by the garbage collector, too late and in no task.
        if isinstance(answer.events, AsyncGenerator):
            await answer.events.aclose()


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer sent as server-sent events."""

    service: Answering
    prepared: Prepared
    encoder: Encoder
    keepalive_s: float = limits.KEEPALIVE_COMMENT_S

    async def send(self, call: Call, send: Send) -> None:
        """Send the stream.

        Raises:
            ApiError: before the first byte.
        """
        refusal: ApiError | None = None
        async with trio.open_nursery() as nursery:
            writer, reader = trio.open_memory_channel[_Item](limits.STREAM_BUFFER_MESSAGES)
            sent = _Sent(trio.current_time())
            nursery.start_soon(_produce, self.service, self.prepared, writer)
            nursery.start_soon(_note_silences, writer, sent, self.keepalive_s)
            try:
                await self._relay(reader, sent, send)
            except ApiError as error:
                refusal = error
            nursery.cancel_scope.cancel()
        if refusal is not None:
            raise refusal

    async def _relay(self, reader: trio.MemoryReceiveChannel[_Item], sent: _Sent, send: Send) -> None:
        started = False
        route = ""
        encode = _Encoding(self.encoder)
        waiting: list[AnswerEvent] = []
        while True:
            try:
                batch = await _next_batch(reader)
            except trio.EndOfChannel:
                break
            is_silent = False
            for item in batch:
                if isinstance(item, _Opened):
                    route = item.route
                elif isinstance(item, _Silence):
                    # Bytes may have gone out while this stood in the channel.
                    is_silent = trio.current_time() >= sent.at + self.keepalive_s
                elif isinstance(item, AnswerFailed) and not started and not _shows(waiting):
                    raise item.error
                else:
                    waiting.append(item)
            if not (started or is_silent or _shows(waiting)):
                continue
            data = b"".join(map(encode, waiting))
            waiting.clear()
            if is_silent:
                data += self.encoder.keepalive()
            if not data:
                continue
            if not started:
                started = True
                await send(_stream_start(route))
            await send({"type": "http.response.body", "body": data, "more_body": True})
            sent.at = trio.current_time()
        if not started:
            raise ApiError(ErrorKind.INTERNAL, "The answer ended before it began.")
        await send({"type": "http.response.body", "body": b"", "more_body": False})


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


async def _next_batch(reader: trio.MemoryReceiveChannel[_Item]) -> list[_Item]:
    """Return what has come, at once and all of it.

    Raises:
        trio.EndOfChannel: nothing more will come.
    """
    batch = [await reader.receive()]
    while True:
        try:
            batch.append(reader.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel):
            return batch


@dataclass(slots=True)
class _Sent:
    """When bytes were sent last; before the first, when the request came."""

    at: float


async def _note_silences(channel: trio.MemorySendChannel[_Item], sent: _Sent, silence_s: float) -> None:
    """Put a `_Silence` into the channel after each silence. One task a stream costs less than a deadline a token."""
    with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
        due = sent.at + silence_s
        while True:
            await trio.sleep_until(due)
            now = trio.current_time()
            if now >= sent.at + silence_s:
                await channel.send(_Silence())
                due = now + silence_s
            else:
                due = sent.at + silence_s


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
    return "".join(sign if " " <= sign <= "~" else "?" for sign in text)[:512].encode("ascii")


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer sent as one reply, after its last event."""

    service: Answering
    prepared: Prepared
    collector: Collector

    async def send(self, call: Call, send: Send) -> None:
        """Wait for the answer and send it.

        Raises:
            ApiError: when the answer fails, at whatever point.
        """
        route = ""
        failure: ApiError | None = None
        relayed = bytearray()
        async with trio.open_nursery() as nursery:
            writer, reader = trio.open_memory_channel[_Item](limits.STREAM_BUFFER_MESSAGES)
            nursery.start_soon(_produce, self.service, self.prepared, writer)
            async for item in reader:
                if isinstance(item, _Opened):
                    route = item.route
                elif isinstance(item, AnswerFailed):
                    failure = item.error
                elif isinstance(item, Relayed):
                    relayed += item.data
                elif not isinstance(item, _Silence):
                    self.collector.add(item)
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        headers = (("x-sai-route", header_text(route).decode()),) if route else ()
        body = bytes(relayed) or msgspec.json.encode(self.collector.body())
        await send_reply(send, Reply(body, headers=headers))
