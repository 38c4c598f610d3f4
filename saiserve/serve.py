"""The process around a node: one port, signals, the first lines an operator reads, and how it ends.

Order of a start: listen, so that peers and probes get answers; join; load; say that it is ready. Order of an end: stop
being offered work (facts, then leave), refuse new connections, let running answers finish within DRAIN_S, go.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from saiserve.config import Settings
from saiserve.errors import SettingsError
from saiserve.http_server import HttpServer, run_http
from saiserve.logs import set_up_logging
from saiserve.membership import run_membership
from saiserve.models.catalog import builtin_catalog, parse_models
from saiserve.node import Node
from saiserve.peers.connections import Connections
from saiserve.peers.swim_transport import SwimTransport
from saiserve.peers.udp_swim_transport import open_udp_swim_transport
from saiserve.routing.default import DEFAULT_CHAIN
from swimcluster.address import Address
from swimcluster.errors import ConfigError, NameInUseError
from swimcluster.nursery import open_plain_nursery

log = logging.getLogger(__name__)

EXIT_STOPPED: Final = 0
"""SIGTERM and SIGINT are how a node is meant to end."""
EXIT_SETTINGS: Final = 2
EXIT_NAME_IN_USE: Final = 3
EXIT_GRACE_S: Final = 5.0
"""Beyond DRAIN_S, until the process ends whatever hangs."""


def serve_node(settings: Settings) -> int:
    """Run a node until it is told to stop; returns the exit code."""
    set_up_logging(settings.log_level, route_log=settings.route_log)
    for warning in settings.warnings:
        log.warning("%s", warning)
    try:
        trio.run(_serve, settings)
    except NameInUseError as error:
        print(f"saiserve: NODE_NAME: {error}", file=sys.stderr)
        return EXIT_NAME_IN_USE
    except (SettingsError, ConfigError) as error:
        print(f"saiserve: {error}", file=sys.stderr)
        return EXIT_SETTINGS
    return EXIT_STOPPED


async def _serve(settings: Settings) -> None:
    catalog = builtin_catalog()
    entries = parse_models(settings.models, catalog)
    node = Node(settings, catalog.with_entries(entries), entries, DEFAULT_CHAIN)
    stop = Stop()
    async with open_plain_nursery() as nursery:
        await nursery.start(stop.watch_signals)
        nursery.start_soon(_cancel_when, stop.hard, nursery.cancel_scope)
        connections = Connections()
        # The transport is the outer one: the membership ends before the socket that it reads is closed.
        async with open_swim_transport(settings, connections) as transport, open_plain_nursery() as life:
            life.start_soon(node.lag.run)
            http = await life.start(run_http, node, transport)
            starting = trio.CancelScope()
            life.start_soon(_cancel_when, stop.soft, starting)
            with starting:
                await _start(node, life, transport, connections, http)
                print(banner(settings, node), flush=True)
                log.info("%s is ready on port %d", settings.node_name, settings.port)
                await trio.sleep_forever()
            await _end(node, http)
            life.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def _start(
    node: Node, life: trio.Nursery, transport: SwimTransport | None, connections: Connections, http: HttpServer
) -> None:
    """Join, load, and begin to tell the load."""
    life.start_soon(node.run_load)
    life.start_soon(node.run_vitals)
    life.start_soon(node.upstreams.run)
    if transport is not None:
        await life.start(run_membership, node, transport, connections, http.port)
    await life.start(node.residents.run)


async def _end(node: Node, http: HttpServer) -> None:
    """Drain: no new work, a goodbye, then as long as DRAIN_S for what runs."""
    drain_s = node.settings.drain_s
    log.info("stopping: running requests have %.0f s to end (DRAIN_S); a second signal (Ctrl-C) ends at once", drain_s)
    exit_hard_after(drain_s + EXIT_GRACE_S)
    node.start_draining()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(http.stop)
        if node.cluster is not None:
            nursery.start_soon(node.cluster.leave)


@asynccontextmanager
async def open_swim_transport(settings: Settings, connections: Connections) -> AsyncIterator[SwimTransport | None]:
    """What carries membership; None on a single box.

    Raises:
        ConfigError: the UDP port cannot be bound.
    """
    if settings.cluster_advertise is None or not settings.is_clustered:
        yield None
    elif settings.cluster_transport == "udp":
        bind = Address(settings.host, settings.port)
        async with open_udp_swim_transport(bind, settings.cluster_advertise, connections) as transport:
            yield transport
    else:
        yield SwimTransport(settings.cluster_advertise, connections)


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


class Stop:
    """How a node is told to end: softly by the first signal, at once by the second."""

    def __init__(self) -> None:
        self.soft = trio.Event()
        self.hard = trio.Event()

    async def watch_signals(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take SIGTERM and SIGINT for as long as the node runs."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                if self.soft.is_set():
                    self.hard.set()
                self.soft.set()


def exit_hard_after(seconds: float) -> None:
    """End the process after `seconds` whatever hangs: the HTTP server shields its writes, and a reader may be stuck."""
    timer = threading.Timer(seconds, os._exit, (EXIT_STOPPED,))
    timer.daemon = True
    timer.start()


def banner(settings: Settings, node: Node) -> str:
    """What an operator reads when the node is ready: where, what, and a line to try."""
    host = "127.0.0.1" if Address(settings.host, 1).is_unspecified else settings.host
    url = f"http://{Address(host, settings.port)}"
    models = ", ".join(node.residents.models) or "no model of its own"
    # A secret that an operator set is not printed, and $API_KEY is one only when it holds a single bare key.
    variable = "API_KEY" if [key.name for key in settings.api_keys] == ["key1"] else "KEY"
    shown = settings.api_keys[0].secret.decode() if settings.api_key_generated else f"${variable}"
    lines = [f"saiserve {settings.node_name} serves {models} at {url}"]
    if settings.api_key_generated:
        lines.append(f"API key, made for this run because API_KEY is not set: {shown}")
    own = next(iter(node.residents.models), None)
    model = own or "$MODEL"
    body = (
        f'{{"model":"{model}","stream":true,"max_tokens":64,'
        '"messages":[{"role":"user","content":"Why is the sky blue? Answer in one sentence."}]}'
    )
    # The shell puts in what is not known here, in double quotes alone.
    if own is None:
        body = body.replace("$MODEL", "'\"$MODEL\"'")
    unknown = [] if settings.api_key_generated else [f"{variable} set to a client key of this node"]
    unknown += [] if own is not None else [f"MODEL set to one that {url}/v1/models lists"]
    lines += [
        f"Try, in a terminal with {' and '.join(unknown)}:" if unknown else "Try:",
        f'  curl -sSN {url}/v1/chat/completions -H "Authorization: Bearer {shown}" \\',
        f"    -H 'Content-Type: application/json' -d '{body}'",
    ]
    return "\n".join(lines)
