"""Server-sent events (WHATWG HTML §9.2) from an answer: opened late enough to refuse by status, then never silent.

Theory: one task reads the answer and writes what it says, all that has come at once; another fills silences. Headers go
out with the first event that shows something, so a fault before has its HTTP status; when nothing was sent within the
keep-alive interval they go out with a comment, and later faults take the dialect's in-stream form (outlet.py).
Leaving the answer, by its end or by the client's going, ends the generation.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import trio

from saiserve import limits
from saiserve.api.http import Call, Reply, Send, send_reply
from saiserve.api.outlet import Encoder, Outlet, header_text
from saiserve.api.prepare import Prepared
from saiserve.api.service import Answering
from saiserve.channels import nothing, received
from saiserve.chat.events import AnswerEvent, AnswerFailed, Relayed
from saiserve.errors import ApiError, ErrorKind

logger = logging.getLogger("saiserve.api")

COMMENT = b":\n\n"
"""A comment: keeps the way open, means nothing."""

Parse = Callable[[AnswerEvent], "list[AnswerEvent]"]


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
        outlet = Outlet(self.encoder, send, call.send_piece)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outlet.fill_silences, self.keepalive_s)
            failure = await _answered(self.service, self.prepared, outlet.note_route, outlet.take)
            await outlet.until_filled()
            nursery.cancel_scope.cancel()
        if failure is not None:
            await outlet.fail(failure)
        await outlet.close()


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
        relayed = bytearray()

        def note(of: str) -> None:
            nonlocal route
            route = of

        async def collect(events: list[AnswerEvent]) -> None:
            for event in events:
                if isinstance(event, Relayed):
                    relayed.extend(event.data)
                else:
                    self.collector.add(event)

        failure = await _answered(self.service, self.prepared, note, collect)
        if failure is not None:
            raise failure
        headers = (("x-sai-route", header_text(route).decode()),) if route else ()
        body = bytes(relayed) or msgspec.json.encode(self.collector.body())
        await send_reply(send, Reply(body, headers=headers))


async def _answered(
    service: Answering,
    prepared: Prepared,
    opened: Callable[[str], None],
    take: Callable[[list[AnswerEvent]], Awaitable[None]],
) -> ApiError | None:
    """Have one answer made: its route to `opened`, its events, parsed, to `take`; what ended it early, if anything did."""
    try:
        async with service.answer(prepared.request) as answer:
            opened(answer.route)
            try:
                return await _pass_on(answer.events, prepared.parse, take)
            finally:
                # A generator left unfinished would be closed by the garbage collector, too late and in no task.
                if isinstance(answer.events, AsyncGenerator):
                    await answer.events.aclose()
    except ApiError as error:
        return prepared.explain(error)
    except Exception:
        logger.exception("answer to %s failed", prepared.request.id)
        return ApiError(ErrorKind.INTERNAL, "The server made a mistake; it is logged.")


async def _pass_on(
    events: AsyncIterator[AnswerEvent], parse: Parse, take: Callable[[list[AnswerEvent]], Awaitable[None]]
) -> ApiError | None:
    """All that has come goes on at once."""
    more = getattr(events, "receive_nowait", nothing)
    async for raw in events:
        parsed: list[AnswerEvent] = []
        try:
            for each in (raw, *received(more)):
                parsed += parse(each)
        finally:  # what came before one that cannot be parsed is passed on
            await take([event for event in parsed if not isinstance(event, AnswerFailed)])
        for event in parsed:
            if isinstance(event, AnswerFailed):
                return event.error
    return None
