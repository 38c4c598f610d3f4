"""A server node's membership in a process of its own, over its HTTP port, without any engine; see member_program."""

from __future__ import annotations

import json
import sys
import tempfile

import telling
import trio

from saiserve.config import load_settings
from saiserve.http_server import run_http
from saiserve.membership import run_membership
from saiserve.models.catalog import builtin_catalog
from saiserve.node import Node
from saiserve.peers.connections import Connections
from saiserve.routing.default import DEFAULT_CHAIN
from saiserve.serve import open_swim_transport
from swimcluster import parse_address


async def main(folder: str) -> None:
    asked = json.loads(sys.argv[1])
    bind = parse_address(asked["bind"])
    environment = {
        "HOST": bind.host,
        "PORT": str(bind.port),
        "NODE_NAME": asked["name"],
        "MODELS": "none",
        "API_KEY": "a key for clients of these tests",
        "CLUSTER_SECRET": asked["key"],
        "CLUSTER_SEED": ",".join(asked["seeds"]),
        "CLUSTER_TRANSPORT": asked.get("transport", "tcp"),
        "STATE_DIR": folder,
    }
    settings = load_settings({name: value for name, value in environment.items() if value}, {})
    node = Node(settings, builtin_catalog(), [], DEFAULT_CHAIN)
    connections = Connections()
    async with open_swim_transport(settings, connections) as transport, trio.open_nursery() as nursery:
        assert transport is not None
        http = await nursery.start(run_http, node, transport)
        cluster = await nursery.start(run_membership, node, transport, connections, http.port)
        nursery.start_soon(telling.tell, cluster)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


with tempfile.TemporaryDirectory() as state:
    trio.run(main, state)
