"""Nodes on loopback sockets: the peer port on a real HTTP server, the client of another node in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from saiserve.dispatch.clock import clock_ns
from saiserve.dispatch.suspects import GuardedEngine, Suspects
from saiserve.engines.messages import Generate, Prompt, Sampling
from saiserve.engines.simulated import SimulatedEngine, SimulatedSettings
from saiserve.peers.client import Peer, PeerClient
from saiserve.peers.connections import Connections
from saiserve.peers.server import PeerPort
from saiserve.peers.wire import PeerKeys, RequestSigner, RequestVerifier
from swimcluster.address import Address
from tests.fakes.patience import WAIT_S

KEYS = PeerKeys(["a cluster secret for tests"])
INSTANCE = b"serving1"


@dataclass
class Served:
    """One serving node and a client of another node."""

    engine: SimulatedEngine
    port: PeerPort
    address: Address
    connections: Connections
    client: PeerClient
    stop: Callable[[], None]


async def not_found(scope: Any, receive: Any, send: Any) -> None:
    """The application behind the peer port."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b"the application"})


@asynccontextmanager
async def http_server(app: Any) -> AsyncIterator[tuple[Address, Callable[[], None]]]:
    """Serve `app` on a free port of 127.0.0.1; the callable ends the server as a kill would."""
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.keep_alive_timeout = 30
    config.accesslog = config.errorlog = None
    async with trio.open_nursery() as nursery:

        async def run(task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED) -> None:
            forever: Callable[[], Awaitable[None]] = trio.sleep_forever
            await serve(app, config, shutdown_trigger=forever, task_status=task_status)  # type: ignore[arg-type]

        (bound,) = await nursery.start(run)
        host, _, port = bound.rpartition("//")[2].rpartition(":")
        yield Address(host, int(port)), nursery.cancel_scope.cancel
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def served(
    settings: SimulatedSettings | None = None, *, keys: PeerKeys = KEYS, instance: bytes = INSTANCE, **more: Any
) -> AsyncIterator[Served]:
    """A node `b` with a simulated engine, and node `a`'s client for it."""
    engine = SimulatedEngine(settings)
    guarded = GuardedEngine(engine, Suspects(), clock_ns)
    port = PeerPort(
        not_found,
        verifier=RequestVerifier(KEYS, INSTANCE),
        engine=lambda model: guarded if model == engine.model else None,
        **more,
    )
    connections = Connections(connect_s=WAIT_S)
    async with http_server(port) as (address, stop):
        peer = Peer("b", address, instance)
        client = PeerClient(
            RequestSigner(keys, "a", b"asking01"), connections, lambda name: peer if name == "b" else None
        )
        try:
            yield Served(engine, port, address, connections, client, stop)
        finally:
            await connections.aclose()


def generate(text: str = "Tell me.", *, id: str = "r1.0.1", **more: Any) -> Generate:  # noqa: A002
    return Generate(id, "simulated", Prompt(text=text), Sampling(seed=7), **{"max_tokens": 64, **more})
