"""What strangers may do to one connection of the node's port, and that it stays with that connection."""

from __future__ import annotations

import errno
import logging
import os
import random
import re
import socket
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio

from saiserve.chat.events import Started
from saiserve.http_connections import _accept, _Http1
from tests.api.serving import KEY, Served, serving
from tests.api.test_disconnect import request_for
from tests.fakes.service import Pause, ScriptedService

HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PATH_OF_NO_TEXT = bytes.fromhex("00000f010500000001") + b"\x82\x86\x41\x01n\x44\x03/\xff\xfe" + b"\x87\x04\x01n"
"""An HTTP/2 request whose path is no ASCII."""


LAST = b"GET /health HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n"
"""Behind requests that leave the connection open, so that their answers have an end."""


async def answer_to(served: Served, *pieces: bytes) -> bytes:
    """All that comes back until the server closes the connection."""
    seen = b""
    async with await trio.open_tcp_stream(*served.address) as connection:
        for piece in pieces:
            await connection.send_all(piece)
        with trio.fail_after(60):
            while part := await connection.receive_some():
                seen += part
    return seen


async def assert_alive(served: Served) -> None:
    async with served.http() as client:
        assert (await client.get("/health")).status_code == 200


async def test_http_2_is_not_spoken_and_its_frames_end_nothing_but_their_connection():
    async with serving() as served:
        assert (await answer_to(served, HTTP_2 + PATH_OF_NO_TEXT)).startswith(b"HTTP/1.1 505 ")
        await assert_alive(served)


async def test_an_offer_of_http_2_is_passed_over():
    offer = b"GET /health HTTP/1.1\r\nHost: n\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: !\r\n\r\n"
    async with serving() as served:
        assert (await answer_to(served, offer + LAST)).startswith(b"HTTP/1.1 200 ")
        await assert_alive(served)


@pytest.mark.parametrize("missing", ["Sec-WebSocket-Key", "Sec-WebSocket-Version", "Connection", "Upgrade"])
async def test_half_a_websocket_handshake_is_a_request_like_any_other(missing):
    lines = {
        "Host": "n",
        "Authorization": f"Bearer {KEY}",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    del lines[missing]
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    async with serving() as served:
        answer = await answer_to(served, 2 * f"GET /v1/models HTTP/1.1\r\n{head}\r\n".encode() + LAST)
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"200", b"200"]


@pytest.mark.parametrize(
    ("target", "status"),
    [("/v1/models", 200), ("?a=/v1/models", 405), ("", 405), ("//v1/models", 404), ("/cluster/state", 401)],
)
async def test_a_target_with_its_host_is_that_path(target, status):
    key = f"Host: n\r\nAuthorization: Bearer {KEY if status != 401 else 'wrong'}\r\n\r\n"
    async with serving() as served:
        answer = await answer_to(served, f"GET HTTP://other:1{target} HTTP/1.1\r\n{key}".encode() + LAST)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_fault_in_one_connection_leaves_the_server_and_other_connections_alone(monkeypatch, caplog):
    whole = _Http1._create_stream

    async def faulty(self, request):
        if request.target == b"/fault":
            raise RuntimeError("a mistake in the protocol code")
        await whole(self, request)

    monkeypatch.setattr(_Http1, "_create_stream", faulty)
    caplog.set_level(logging.CRITICAL)
    async with serving() as served, await trio.open_tcp_stream(*served.address) as other:
        await other.send_all(b"GET /health HTTP/1.1\r\nHost: n\r\n")
        assert await answer_to(served, b"GET /fault HTTP/1.1\r\nHost: n\r\n\r\n") == b""
        await other.send_all(b"\r\n")
        with trio.fail_after(30):
            assert (await other.receive_some()).startswith(b"HTTP/1.1 200 ")
        await assert_alive(served)


@pytest.mark.parametrize("seed", range(20))
async def test_random_bytes_end_their_own_connection_at_most(seed):
    rng = random.Random(seed)
    starts = [
        b"",
        HTTP_2,
        b"GET / HTTP/1.1\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n",
    ]
    async with serving() as served:
        for start in starts:
            connection = await trio.open_tcp_stream(*served.address)
            await connection.send_all(start + rng.randbytes(rng.choice([1, 40, 3000])))
            await connection.aclose()
        await assert_alive(served)


async def test_a_request_with_two_lengths_is_refused_and_what_follows_is_not_read_as_another():
    two = b"POST /v1/chat/completions HTTP/1.1\r\nHost: n\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    async with serving() as served:
        answer = await answer_to(served, two + b"GET /health HTTP/1.1\r\nHost: n\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_pipelined_requests_are_answered_in_order():
    gets = b"".join(
        f"GET {path} HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
        for path in ("/health", "/nowhere", "/v1/models")
    )
    async with serving() as served:
        answer = await answer_to(served, gets + LAST)
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"404", b"200", b"200"]


@pytest.mark.parametrize("behind", [b"\r\n", b"GET /health HTTP/1.1\r\nHost: n\r\n\r\n", b"GET /hea"])
async def test_leaving_is_noticed_when_more_bytes_follow_the_request(behind):
    service = ScriptedService(lambda _: [Started(1, 0), Pause(3600)])
    async with serving(service) as served:
        connection = await trio.open_tcp_stream(*served.address)
        await connection.send_all(request_for(stream=False) + behind)
        while not service.requests:
            await trio.sleep(0.01)
        await connection.aclose()
        with trio.fail_after(30):
            await service.closed.wait()
        assert service.ended == ["cancelled"]


async def test_a_process_without_room_for_connections_takes_them_when_there_is_room_again():
    class Full:
        """A listener whose process has run out of descriptors for a while."""

        def __init__(self, real: socket.socket) -> None:
            self.real, self.refusals = real, 3

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def accept(self) -> Any:
            if self.refusals:
                self.refusals -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self.real.accept()

    with socket.create_server(("127.0.0.1", 0)) as real:
        listener = Full(real)
        taken = trio.Event()

        async def serve_one(stream: trio.SocketStream) -> None:
            await stream.aclose()
            taken.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_accept, listener, nursery, serve_one, 1_000)
            with socket.create_connection(real.getsockname()), trio.fail_after(30):
                await taken.wait()
            nursery.cancel_scope.cancel()
    assert listener.refusals == 0


ALIVE = b"GET /health HTTP/1.1\r\nHost: n\r\n\r\n"


def sockets_open() -> int:
    """Descriptors of this process, the server's and the clients'."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("said", [b"", ALIVE, ALIVE[:9]], ids=["nothing", "a request", "half a request"])
async def test_what_a_client_has_closed_is_closed_here_at_once(said: bytes) -> None:
    async with serving() as served:
        before = sockets_open()
        for _ in range(20):
            async with await trio.open_tcp_stream(*served.address) as connection:
                if said:
                    await connection.send_all(said)
                if said == ALIVE:
                    assert (await connection.receive_some()).startswith(b"HTTP/1.1 200 ")
        with trio.fail_after(30):  # far below the 75 s that an idle connection is kept
            while sockets_open() > before:
                await trio.sleep(0.01)


async def test_a_client_that_has_closed_before_its_answer_keeps_nothing_either() -> None:
    service = ScriptedService(lambda request: [Started(1, 0), Pause(3600)])
    async with serving(service) as served:
        before = sockets_open()
        async with await trio.open_tcp_stream(*served.address) as connection:
            await connection.send_all(request_for(stream=False))
            while not service.requests:
                await trio.sleep(0.01)
        with trio.fail_after(30):
            while sockets_open() > before:
                await trio.sleep(0.01)


async def test_more_connections_than_there_may_be_wait_for_one_to_end(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(connections_max=3) as served, AsyncExitStack() as opened:
        first = [await opened.enter_async_context(await trio.open_tcp_stream(*served.address)) for _ in range(3)]
        for connection in first:
            await connection.send_all(ALIVE)
            assert (await connection.receive_some()).startswith(b"HTTP/1.1 200 ")
        late = await opened.enter_async_context(await trio.open_tcp_stream(*served.address))
        await late.send_all(ALIVE)
        with trio.move_on_after(0.5) as waiting:
            await late.receive_some()
        assert waiting.cancelled_caught
        await first[0].aclose()
        with trio.fail_after(30):
            assert (await late.receive_some()).startswith(b"HTTP/1.1 200 ")
    assert sum("new ones wait" in line for line in caplog.messages) == 1
