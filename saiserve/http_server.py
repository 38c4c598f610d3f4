"""The node's one port: other nodes first, then operators and clients, on hypercorn.

Requests of other nodes (`/cluster/swim`, `/cluster/peer/generate`, …) are answered ahead of the application, so that a busy
API never makes this node look dead.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import hypercorn.config
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saiserve.api.admin import admin_routes
from saiserve.api.context import Api
from saiserve.api.cors import Origins
from saiserve.api.http import SEND_PIECE, Message, Receive, Scope, Send
from saiserve.api.image_hosts import ImageHosts
from saiserve.api.remote_images import RemoteImages
from saiserve.api.responses_kept import CALL as RESPONSE_CALL
from saiserve.api.responses_kept import KeptResponses
from saiserve.app import AsgiApp, create_app
from saiserve.auth import Auth
from saiserve.config import Settings
from saiserve.descriptors import connections_max, raise_limit
from saiserve.errors import SettingsError
from saiserve.http_connections import serve_connections
from saiserve.metering.metrics import CONTENT_TYPE, NodeMetrics, Tally
from saiserve.model_admin import NodeModelAdmin
from saiserve.node import FACTS_CALL, Node
from saiserve.node_service import NodeService
from saiserve.peers.server import PeerPort, SwimPort
from saiserve.response_homes import NodeHomes

KEEP_ALIVE_S: Final = 75.0
"""Idle connections of clients and nodes are closed after this."""
BACKLOG: Final = 1024


@dataclass(slots=True)
class HttpServer:
    """The running server. `stop` refuses new connections and waits for those that are answering."""

    port: PeerPort
    stopping: trio.Event = field(default_factory=trio.Event)
    stopped: trio.Event = field(default_factory=trio.Event)

    async def stop(self) -> None:
        """Stop; returns when the last answer ended, or after the node's DRAIN_S."""
        self.stopping.set()
        await self.stopped.wait()


async def run_http(
    node: Node, swim: SwimPort | None, *, task_status: trio.TaskStatus[HttpServer] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve until stopped; started once the port is open. `swim` takes membership's bytes on `/cluster/swim`.

    Raises:
        SettingsError: the port cannot be had.
    """
    kept = KeptResponses(homes=NodeHomes(node) if node.settings.is_clustered else None)
    port = PeerPort(
        build_app(node, kept),
        verifier=None,
        engine=node.residents.engine,
        swim=swim,
        is_draining=lambda: node.draining,
        is_clustered=node.settings.is_clustered,
        calls={FACTS_CALL: node.tell_facts, RESPONSE_CALL: kept.answer},
    )
    server = HttpServer(port)
    listeners = listen(node.settings)
    app, config = finish_sends(port), _hypercorn_config(node)
    share = connections_max(raise_limit()) // len(listeners)
    try:
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                serve = partial(serve_connections, app, config, listener, server.stopping.wait, connections_max=share)
                await nursery.start(serve)
            task_status.started(server)
    finally:
        server.stopped.set()


def build_app(node: Node, kept: KeptResponses) -> AsgiApp:
    """All that this node answers on its port; `kept` are the responses it and the others keep."""
    settings = node.settings
    tally = Tally.empty()
    metrics = NodeMetrics(node, tally)
    service = NodeService(node, tally, started_at=int(time.time()))

    async def show_metrics(_request: Request) -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    auth = Auth(settings.api_keys, tuple(secret.encode() for secret in settings.cluster_secrets))
    return create_app(
        Api(service, responses=kept, images=_images(settings)),
        auth,
        extra_routes=[Route("/metrics", show_metrics, methods=["GET"]), *admin_routes(NodeModelAdmin(node))],
        origins=Origins(settings.cors_origins),
        body_bytes_max=settings.body_mib << 20,
    )


def _images(settings: Settings) -> RemoteImages | None:
    return RemoteImages(ImageHosts(settings.image_urls)) if settings.image_urls else None


def finish_sends(app: AsgiApp) -> AsgiApp:
    """An application whose last send of each response is not cancelled in the middle.

    From inside that send hypercorn tells the application that the client is gone, by which handlers cancel their work,
    and then makes the connection ready for its next request. A cancel there leaves a connection that nobody closes.
    """

    async def finishing(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_whole(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                with trio.CancelScope(shield=True):
                    await send(message)
            else:
                await send(message)

        scope[SEND_PIECE] = send
        await app(scope, receive, send_whole)

    return finishing


def listen(settings: Settings) -> list[socket.socket]:
    """The node's port, open on each of its addresses.

    Raises:
        SettingsError: it cannot be had on one of them.
    """
    with ExitStack() as opened:
        is_alone = len(settings.hosts) == 1
        listeners = [opened.enter_context(_listen_at(host, settings.port, is_alone)) for host in settings.hosts]
        opened.pop_all()
        return listeners


def _listen_at(host: str, port: int, is_alone: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            # `::` alone means every interface of both families, whatever the system's default; beside 0.0.0.0 its own.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not is_alone))
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _port_error(host, port, error) from error
    return listener


def _hypercorn_config(node: Node) -> hypercorn.config.Config:
    config = hypercorn.config.Config()
    config.graceful_timeout = node.settings.drain_s
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    config.loglevel = "WARNING"
    return config


def _port_error(host: str, port: int, error: OSError) -> SettingsError:
    where = f"{host} port {port}"
    match error.errno:
        case errno.EADDRINUSE:
            return SettingsError(f"{where} is in use by another program: set PORT, or end the other")
        case errno.EACCES:
            return SettingsError(f"{where} needs more rights: set PORT to one above 1023")
        case errno.EADDRNOTAVAIL:
            return SettingsError(f"HOST {host} is no address of this machine: set it to one, or to 0.0.0.0")
        case _:
            return SettingsError(f"cannot listen on {where}: {error.strerror}; check HOST and PORT")
