"""This node's life as a member: joins, watches who is there, says what it can do, leaves."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Final

import trio
from blake3 import blake3

from saiserve import limits
from saiserve.config import Settings
from saiserve.fleet.facts import encode_metadata
from saiserve.node import Node
from saiserve.peers.client import PeerClient
from saiserve.peers.connections import Connections
from saiserve.peers.server import PeerPort
from saiserve.peers.wire import PeerKeys, RequestSigner, RequestVerifier
from swimcluster.cluster import Cluster, open_cluster
from swimcluster.config import Config
from swimcluster.transport import Transport

log = logging.getLogger(__name__)

GOSSIP_OVER_HTTP_S: Final = 0.5
"""Gossip tick over the HTTP port; each tick is a few requests, so it is slower than over datagrams."""
REFRESH_S: Final = 1.0
"""Ages and round-trip times move without events, so the view is also read this often."""


def membership_config(settings: Settings) -> Config:
    """The membership settings that follow from a node's.

    Raises:
        ConfigError: they do not fit each other.
    """
    over_http = settings.cluster_transport == "tcp"
    return Config.lan(
        name=settings.node_name,
        advertise=settings.cluster_advertise,
        seeds=settings.cluster_seeds,
        keys=[membership_key(secret) for secret in settings.cluster_secrets],
        cluster=settings.cluster_name,
        state_dir=settings.state_dir,
        exchange_bytes_max=limits.PEER_SWIM_BODY_BYTES_MAX,
        **({"gossip_interval_s": GOSSIP_OVER_HTTP_S} if over_http else {}),
    )


def state_dir_fault(folder: Path) -> str:
    """Why nothing can be kept in the state folder; empty when it can be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return (
            f"STATE_DIR: {folder} cannot be written ({error.strerror}): after a restart this node will have forgotten the "
            "other members; set STATE_DIR to a folder that it may write"
        )


def membership_key(secret: str) -> bytes:
    """The key that membership packets are signed with, derived from a cluster secret."""
    return blake3(secret.encode(), derive_key_context="saiserve 2026 membership").digest()


async def run_membership(
    node: Node,
    transport: Transport,
    connections: Connections,
    port: PeerPort,
    *,
    task_status: trio.TaskStatus[Cluster] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Be a member until cancelled; started once the first seed answered or the wait for it is over.

    From then on `port` answers other nodes, and the node reaches them over `connections`.

    Raises:
        NameInUseError: a live member holds this node's name.
        ConfigError: the settings do not fit each other.
    """
    config = membership_config(node.settings)
    fault = await trio.to_thread.run_sync(state_dir_fault, node.settings.state_dir)
    if fault:
        log.warning("%s", fault)
    async with open_cluster(config, transport=transport, metadata=encode_metadata(node.facts)) as cluster:
        keys = PeerKeys(node.settings.cluster_secrets, node.settings.cluster_name)
        instance = cluster.local.instance
        node.peers = PeerClient(RequestSigner(keys, node.settings.node_name, instance), connections, node.peer)
        port.open(RequestVerifier(keys, instance))
        node.cluster = cluster
        node.publish()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch, node, cluster)
                nursery.start_soon(_refresh, node, cluster)
                task_status.started(cluster)
        finally:
            node.cluster = None


async def _watch(node: Node, cluster: Cluster) -> None:
    async with cluster.subscribe() as events:
        async for _ in events:
            node.take_members(cluster.members, cluster.departed)


async def _refresh(node: Node, cluster: Cluster) -> None:
    while True:
        node.take_members(cluster.members, cluster.departed)
        await node.fetch_facts()
        await trio.sleep(REFRESH_S)
