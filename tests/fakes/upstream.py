"""Upstreams of tests: one that plays back bytes, and a whole node in front of any."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import h11
import httpx2
import trio
from hypercorn.config import Config

from saiserve.api.responses_kept import KeptResponses
from saiserve.http_connections import serve_connections
from saiserve.http_server import build_app
from saiserve.node import Node
from tests.fakes.node import make_node

KEY = "a-key-of-16-or-more"
UPSTREAM_KEY = "canary-of-the-upstream"
MODEL = "cloud-model"


@dataclass(frozen=True)
class Playback:
    """One response: its status, headers and body in pieces; `cut` closes the connection before its end."""

    pieces: Sequence[bytes] = ()
    status: int = 200
    headers: Sequence[tuple[str, str]] = (("content-type", "text/event-stream"),)
    cut: bool = False
    hold: bool = False
    """Stay silent after the pieces until the client goes away."""


@dataclass
class Heard:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class PlaybackUpstream:
    """Answers each request with the next playback; the last one again and again."""

    plays: list[Playback]
    url: str = ""
    heard: list[Heard] = field(default_factory=list)
    gone: int = 0
    """Clients that went away while an answer was held."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[PlaybackUpstream]:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, self._serve, 0, host="127.0.0.1"))
            self.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            yield self
            nursery.cancel_scope.cancel()

    async def _serve(self, stream: trio.SocketStream) -> None:
        machine = h11.Connection(h11.SERVER)
        heard: Heard | None = None
        while True:
            event = machine.next_event()
            if event is h11.NEED_DATA:
                try:
                    machine.receive_data(await stream.receive_some())
                except (trio.BrokenResourceError, h11.RemoteProtocolError):
                    return
            elif isinstance(event, h11.Request):
                headers = {name.decode(): value.decode() for name, value in event.headers}
                heard = Heard(event.target.decode(), headers, b"")
            elif isinstance(event, h11.Data) and heard is not None:
                heard.body += event.data
            elif isinstance(event, h11.EndOfMessage) and heard is not None:
                self.heard.append(heard)
                if not await self._play(stream, machine):
                    return
                machine.start_next_cycle()
            else:
                return

    async def _play(self, stream: trio.SocketStream, machine: h11.Connection) -> bool:
        play = self.plays[min(len(self.heard), len(self.plays)) - 1]
        try:
            await stream.send_all(
                machine.send(h11.Response(status_code=play.status, headers=list(play.headers))) or b""
            )
            for piece in play.pieces:
                await stream.send_all(machine.send(h11.Data(data=piece)) or b"")
                await trio.lowlevel.checkpoint()
            if play.hold:
                await stream.receive_some()
                self.gone += 1
                return False
            if play.cut:
                return False
            await stream.send_all(machine.send(h11.EndOfMessage()) or b"")
        except trio.BrokenResourceError:
            self.gone += 1
            return False
        return True


def upstream_table(url: str, dialect: str, **more: Any) -> dict[str, Any]:
    """One target with one model."""
    return {"url": url, "dialect": dialect, "key_env": "UPSTREAM_KEY", "models": [MODEL], **more}


def front(folder: Path, upstreams: dict[str, Any], *, models: str = "none", **environment: str) -> Node:
    """A node, not started, in front of upstream targets."""
    return make_node(
        models, folder, **{"UPSTREAMS": json.dumps(upstreams), "UPSTREAM_KEY": UPSTREAM_KEY, **environment}
    )


@asynccontextmanager
async def fronting(node: Node) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the node, served on a loopback port."""
    config = Config()
    config.graceful_timeout = 0.05
    config.accesslog = None
    config.errorlog = None
    stop = trio.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run_load)
        nursery.start_soon(node.upstreams.run)
        await nursery.start(node.residents.run)
        await nursery.start(
            partial(serve_connections, build_app(node, KeptResponses(homes=None)), config, listener, stop.wait)
        )
        async with httpx2.AsyncClient(
            base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=60, trust_env=False
        ) as client:
            yield client
        stop.set()
        nursery.cancel_scope.cancel()


def chat_stream(*chunks: dict[str, Any], done: bool = True) -> bytes:
    """Chat chunks as server-sent events."""
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "real"}
    lines = [b"data: " + json.dumps({**head, **chunk}).encode() + b"\n\n" for chunk in chunks]
    return b"".join(lines) + (b"data: [DONE]\n\n" if done else b"")


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """One chunk with one choice."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    """The last chunk."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"choices": [], "usage": {**counts, "prompt_tokens_details": {"cached_tokens": cached}}}


def message_stream(*events: dict[str, Any]) -> bytes:
    """Anthropic events."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)


def split(data: bytes, every: int) -> list[bytes]:
    """The same bytes in pieces."""
    return [data[at : at + every] for at in range(0, len(data), every)]


Body = Callable[..., dict[str, Any]]


def chat_body(**more: Any) -> dict[str, Any]:
    """A short chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32, **more}


def messages_body(**more: Any) -> dict[str, Any]:
    """A short Messages request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32, **more}
