"""What a stream sends in one piece, by which way, and what is left of it when something of ours breaks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from saiserve.api.chat_reply import ChatHead, ChatStreamEncoder
from saiserve.api.errors import ErrorStyle
from saiserve.api.http import SEND_PIECE, Call
from saiserve.api.outlet import Encoder
from saiserve.api.prepare import Prepared
from saiserve.api.service import Answer
from saiserve.api.sse import Streamed
from saiserve.chat.events import AnswerEvent, ChoiceFinished, Started, StopKind, TextDelta, Usage
from saiserve.chat.request import Dialect, GenerationRequest
from saiserve.engines.messages import Sampling
from saiserve.http_server import finish_sends

pytestmark = pytest.mark.autojump

REQUEST = GenerationRequest("r", Dialect.CHAT, "smol", Sampling(1))
A, B, C = (TextDelta(0, text) for text in ("AAA", "BBB", "CCC"))
END: tuple[AnswerEvent, ...] = (ChoiceFinished(0, StopKind.END), Usage(1, 0, 3))


class Bursts:
    """Answers with events that come in bursts, a second apart."""

    def __init__(self, *bursts: Sequence[AnswerEvent]) -> None:
        self._bursts = bursts

    @asynccontextmanager
    async def answer(self, _request: GenerationRequest) -> AsyncIterator[Answer]:
        writer, reader = trio.open_memory_channel[AnswerEvent](16)

        async def say() -> None:
            async with writer:
                for burst in self._bursts:
                    for event in burst:
                        writer.send_nowait(event)
                    await trio.sleep(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(say)
            yield Answer(reader)
            nursery.cancel_scope.cancel()


def chat() -> ChatStreamEncoder:
    return ChatStreamEncoder(ChatHead("c", 1, "smol"), choices=1, usage=True)


def call(send_piece: Any = None) -> Call:
    return Call("POST", "/v1/chat/completions", {}, {}, {}, b"", "r", "", ErrorStyle.OPENAI, send_piece=send_piece)


class Client:
    """Keeps the pieces it is sent."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def send(self, message: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message.get("body")]

    async def hear(
        self,
        *bursts: Sequence[AnswerEvent],
        encoder: Encoder | None = None,
        parse: Callable[[AnswerEvent], list[AnswerEvent]] = lambda event: [event],
    ) -> None:
        await Streamed(Bursts(*bursts), Prepared(REQUEST, parse), encoder or chat()).send(call(), self.send)


async def test_what_has_come_at_once_is_one_piece() -> None:
    client = Client()
    await client.hear([Started(1, 0), A, B], [C], END)
    assert len(client.bodies) == 3
    assert b"AAA" in client.bodies[0]
    assert b"BBB" in client.bodies[0]


class Breaks:
    """An encoder that cannot show one event."""

    def __init__(self, bad: AnswerEvent) -> None:
        self._bad, self._real = bad, chat()
        self.keepalive = self._real.keepalive

    def encode(self, event: AnswerEvent) -> bytes:
        if event is self._bad:
            raise KeyError("a fault of this encoder")
        return self._real.encode(event)


async def test_an_encoder_that_breaks_ends_the_stream_with_an_error_inside() -> None:
    client = Client()
    await client.hear([Started(1, 0), A], [B], [C], encoder=Breaks(B))
    assert b"AAA" in client.bodies[0]
    assert b"it is logged" in client.bodies[-1]
    assert client.messages[-1]["more_body"] is False


async def test_what_came_before_something_unreadable_is_still_said() -> None:
    def parse(event: AnswerEvent) -> list[AnswerEvent]:
        if event is C:
            raise KeyError("a fault of this parser")
        return [event]

    client = Client()
    await client.hear([Started(1, 0), A], [B, C], parse=parse)
    assert b"BBB" in client.bodies[1]
    assert b"it is logged" in client.bodies[-1]


async def test_pieces_pass_by_what_looks_at_head_and_end_in_their_order() -> None:
    client, seen = Client(), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def looking(message: Any) -> None:
            seen.append(message)
            await send(message)

        streamed = Streamed(Bursts([Started(1, 0), A], [B], END), Prepared(REQUEST, lambda event: [event]), chat())
        await streamed.send(call(scope[SEND_PIECE]), looking)

    await finish_sends(app)({"type": "http"}, trio.sleep_forever, client.send)
    assert [message["type"] for message in seen] == ["http.response.start", "http.response.body"]
    assert client.messages[0] is seen[0]
    assert client.messages[-1] is seen[1]
    assert [b"AAA" in body or b"BBB" in body for body in client.bodies[:2]] == [True, True]
