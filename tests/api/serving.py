"""Puts an application on a loopback port for the length of a test, clients of it, and what it says when it refuses."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
import trio
from hypercorn.config import Config

from saiserve.api.context import Api
from saiserve.app import create_app
from saiserve.auth import Auth, ClientKey
from saiserve.http_connections import serve_connections
from saiserve.http_server import KEEP_ALIVE_S
from tests.fakes.service import ScriptedService

KEY = "client-key-of-the-tests"
SECRET = b"operator-secret-of-the-tests"
CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
AUTH = Auth([ClientKey("tests", KEY.encode()), ClientKey("other", b"another-client-key")], [SECRET])


@dataclass
class Served:
    """A running server."""

    url: str
    service: ScriptedService

    def http(self, **headers: str) -> httpx2.AsyncClient:
        """Return a client with the key set, unless `authorization` is given."""
        return httpx2.AsyncClient(base_url=self.url, headers={"authorization": f"Bearer {KEY}"} | headers, timeout=60)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)


@asynccontextmanager
async def serving(
    service: ScriptedService | None = None, *, connections_max: int = 1_000, **api_options: Any
) -> AsyncIterator[Served]:
    """Serve until the block ends; a real server on a real socket."""
    service = service or ScriptedService()
    app = create_app(Api(service, **api_options), AUTH)
    config = Config()
    config.graceful_timeout = 0.05
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.accesslog = None
    config.errorlog = None
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        serve = partial(serve_connections, app, config, listener, stop.wait, connections_max=connections_max)
        await nursery.start(serve)
        try:
            yield Served(f"http://127.0.0.1:{port}", service)
        finally:
            stop.set()
            nursery.cancel_scope.deadline = trio.current_time() + 2


@contextmanager
def served_elsewhere(service: ScriptedService | None = None, **api_options: Any) -> Iterator[Served]:
    """Serve from another thread, for clients that block or bring their own event loop."""
    box: list[Served] = []
    up = threading.Event()
    handles: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []

    async def main() -> None:
        async with serving(service, **api_options) as served:
            stop = trio.Event()
            handles.append((trio.lowlevel.current_trio_token(), stop))
            box.append(served)
            up.set()
            await stop.wait()

    thread = threading.Thread(target=trio.run, args=(main,), daemon=True)
    thread.start()
    assert up.wait(60), "the server did not start"
    try:
        yield box[0]
    finally:
        token, stop = handles[0]
        token.run_sync_soon(stop.set)
        thread.join(60)
    assert not thread.is_alive(), "the server did not stop"


async def raw_exchange(served: Served, head: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """Send a request exactly as written and return status, headers and body; no client tidies the path."""
    async with await trio.open_tcp_stream(*served.address) as connection:
        await connection.send_all(head.replace("\n", "\r\n").encode("latin-1") + b"Connection: close\r\n\r\n" + body)
        seen = b""
        with trio.fail_after(30):
            while part := await connection.receive_some():
                seen += part
    top, _, rest = seen.partition(b"\r\n\r\n")
    status_line, *lines = top.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(status_line.split()[1]), headers, rest


def refuse_nan(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def strict(content: bytes) -> dict:
    return json.loads(content.decode("utf-8", "strict"), parse_constant=refuse_nan)


async def assert_refused(response, status: int, param: str | None = None) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert response.headers["x-request-id"] == response.headers["request-id"]
    error = strict(response.content)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    if param is not None:
        assert (error["param"] or "").startswith(param), error
    return error
