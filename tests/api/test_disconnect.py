"""A client that goes away stops its generation, whatever phase it is in."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import suppress

import pytest
import trio

from saiserve import limits
from saiserve.chat.events import Started, TextDelta
from tests.api.serving import KEY, Served, serving
from tests.fakes.service import Pause, ScriptedService

ENDLESS = [Started(1, 0), TextDelta(0, "a"), Pause(3600)]


def request_for(*, stream: bool) -> bytes:
    body = json.dumps({"model": "smol", "messages": [{"role": "user", "content": "hi"}], "stream": stream})
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def connect_and_ask(served: Served, *, stream: bool) -> trio.SocketStream:
    connection = await trio.open_tcp_stream(*served.address)
    await connection.send_all(request_for(stream=stream))
    return connection


async def leave(connection: trio.SocketStream, how: str) -> None:
    if how == "RST":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await connection.aclose()


@pytest.mark.parametrize("how", ["FIN", "RST"])
@pytest.mark.parametrize("phase", ["streaming", "waiting for a whole reply", "queued", "queued for a stream"])
async def test_leaving_ends_the_answer_within_a_second(how, phase):
    service = ScriptedService(lambda request: ENDLESS, entry_s=3600 if "queued" in phase else 0)
    async with serving(service) as served:
        connection = await connect_and_ask(served, stream="stream" in phase)
        if phase == "streaming":
            assert b'"content":"a"' in await read_until(connection, b'"content":"a"')
        while not service.requests:
            await trio.sleep(0.01)
        await leave(connection, how)
        with trio.fail_after(30):
            await service.closed.wait()
        assert service.ended == ["cancelled"]


async def read_until(connection: trio.SocketStream, mark: bytes) -> bytes:
    seen = b""
    with trio.fail_after(30):
        while mark not in seen:
            part = await connection.receive_some()
            assert part, "the server closed the connection"
            seen += part
    return seen


async def test_a_slow_reader_slows_the_producer_down_instead_of_filling_memory():
    made = 0

    def script(request):
        nonlocal made
        yield Started(1, 0)
        while True:
            made += 1
            yield TextDelta(0, "x" * 10_000)

    async with serving(ScriptedService(script)) as served:
        connection = await connect_and_ask(served, stream=True)
        await read_until(connection, b"xxx")
        before = -1
        while before != made:  # nobody reads: once it waits, it waits for good
            before = made
            await trio.sleep(0.3)
        assert made < 5_000, "the producer never waited"
        await connection.aclose()
        with trio.fail_after(30):
            await served.service.closed.wait()


async def test_a_client_that_stays_and_does_not_read_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_STALL_S", 0.2)
    more_than_the_system_buffers = [TextDelta(0, "a" * 1_000_000)] * 32
    service = ScriptedService(lambda _: [Started(1, 0), *more_than_the_system_buffers, Pause(3600)])
    async with serving(service) as served, await connect_and_ask(served, stream=True) as connection:
        with trio.fail_after(30):
            await service.closed.wait()
            with suppress(trio.BrokenResourceError):
                while await connection.receive_some(1 << 20):
                    pass
        assert service.ended == ["cancelled"]
