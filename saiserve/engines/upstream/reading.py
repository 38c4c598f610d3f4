"""An upstream's answer as it comes: held back until it has begun, then passed on piece by piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

import trio

from saiserve import limits
from saiserve.chat.events import AnswerEvent
from saiserve.chat.request import Dialect, GenerationRequest
from saiserve.engines.messages import Accepted, Failed, FailureKind, Finished, FinishReason, Load, Progress
from saiserve.engines.spoken import SourceReply, Spoken
from saiserve.engines.upstream.anthropic_decoder import MessageDecoder
from saiserve.engines.upstream.faults import UpstreamFault, refused_by
from saiserve.engines.upstream.limits_of import estimated_prompt_tokens
from saiserve.engines.upstream.openai_decoder import ChatDecoder
from saiserve.engines.upstream.sse import EventTooLarge, SseEvent, SseReader
from saiserve.errors import ErrorKind

if TYPE_CHECKING:
    import httpx2

Decoder = ChatDecoder | MessageDecoder
CLOSING_S: Final = 1.0
"""Longest wait for a connection to close."""


async def pieces_of(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """A body as it comes. Close it, also when it was not read to its end: that closes the connection."""
    chunks = response.aiter_bytes()
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        # The client's own generators end when they read on and find the connection closed; left as they are, the
        # garbage collector would find them.
        with trio.move_on_after(CLOSING_S, shield=True), suppress(Exception, StopAsyncIteration):
            await response.aclose()
            await anext(chunks)


async def whole_body(response: httpx2.Response) -> bytes:
    """A body of bounded size.

    Raises:
        UpstreamFault: it is larger.
    """
    body = bytearray()
    async with aclosing(pieces_of(response)) as pieces:
        async for chunk in pieces:
            body += chunk
            if len(body) > limits.UPSTREAM_BODY_BYTES_MAX:
                raise UpstreamFault(ErrorKind.UPSTREAM_FAILED, "an answer of the upstream is too large")
    return bytes(body)


class Reading:
    """One answer of a target to one request.

    Args:
        relays: the client gets the target's own bytes; the events read from them only count.
    """

    def __init__(
        self, attempt: str, request: GenerationRequest, target: str, decoder: Decoder, *, relays: bool
    ) -> None:
        self.has_begun = False
        """The client may have been shown something."""
        self._id = attempt
        self._target = target
        self._decoder = decoder
        self._relays = relays
        self._is_stream = request.stream
        self._shows_usage = request.stream_usage or request.dialect not in (Dialect.CHAT, Dialect.COMPLETIONS)
        self._estimate = estimated_prompt_tokens(request)
        self._fault: UpstreamFault | None = None

    async def replies(self, response: httpx2.Response, load: Load) -> AsyncGenerator[SourceReply, None]:
        """The engine's messages for one response.

        Raises:
            httpx2.TransportError: the connection broke.
        """
        held: list[Spoken] = []
        try:
            async with aclosing(self._spoken(response)) as pieces:
                async for spoken in pieces:
                    held.append(spoken)
                    if not self._decoder.has_begun:
                        yield Progress(self._id, 0)
                        continue
                    if not self.has_begun:
                        self.has_begun = True
                        yield self._accepted(load)
                    for piece in held:
                        yield piece
                    held.clear()
            yield self._finished(load)
        except UpstreamFault as fault:
            if self.has_begun:
                yield Failed(self._id, FailureKind.INTERNAL, fault.error.message)
            else:
                yield refused_by(fault, self._id)

    async def _spoken(self, response: httpx2.Response) -> AsyncGenerator[Spoken, None]:
        """What was said, piece by piece, the end included.

        Raises:
            UpstreamFault: it cannot be read on.
        """
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        # A target that answers in the other form than it was asked for is understood, but not relayed.
        self._relays = self._relays and is_stream == self._is_stream
        if not is_stream:
            body = await whole_body(response)
            events = tuple(self._decoder.whole(body))
            self._decoder.has_begun = True
            yield Spoken(self._id, events, body if self._relays else b"", relayed=self._relays, is_end=True)
            return
        reader = SseReader()
        try:
            async with aclosing(pieces_of(response)) as pieces:
                async for chunk in pieces:
                    for said in self._read(reader.feed(chunk)):
                        yield said
                    self._check()
        except EventTooLarge as error:
            raise UpstreamFault(ErrorKind.UPSTREAM_FAILED, f"the upstream {self._target!r} sent {error}") from error
        for said in self._read(reader.finish(), last=self._decoder.finish):
            yield said
        self._check()

    def _read(self, sse: Sequence[SseEvent], last: Callable[[], list[AnswerEvent]] | None = None) -> Sequence[Spoken]:
        """Some events as one piece, up to the first that cannot be read; `last` adds what the end makes of them."""
        events: list[AnswerEvent] = []
        raw = bytearray()
        is_told = False
        try:
            for event in sse:
                events += self._feed(event, raw)
            if last is not None:
                events += last()
                self._decoder.has_begun = True
        except UpstreamFault as fault:
            self._fault, is_told = fault, fault.is_told
        if not sse and not events:
            return ()
        is_end = self._decoder.is_done or is_told
        return (Spoken(self._id, tuple(events), bytes(raw), relayed=self._relays, is_end=is_end),)

    def _feed(self, event: SseEvent, raw: bytearray) -> list[AnswerEvent]:
        try:
            events = self._decoder.feed(event)
        except UpstreamFault as fault:
            if self._relays and fault.is_told:
                raw += event.raw  # the target's own words for its error, in the client's dialect
            raise
        if self._relays and (self._shows_usage or not self._decoder.hides_usage):
            raw += event.raw
        return events

    def _check(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _accepted(self, load: Load) -> Accepted:
        return Accepted(self._id, self._decoder.prompt_tokens or self._estimate, self._decoder.cached_tokens, load)

    def _finished(self, load: Load) -> Finished:
        usage = self._decoder.usage
        counts = (usage.completion_tokens, usage.prompt_tokens, usage.cached_tokens) if usage is not None else (0, 0, 0)
        return Finished(self._id, FinishReason.STOP, *counts, load=load)
