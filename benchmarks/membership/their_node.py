"""One kinship member under measurement; takes its orders from standard input (`lines.py`)."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys

import kinship

from benchmarks.membership import settings
from benchmarks.membership.lines import say, say_cpu


def config(name: str, port: int, seeds: list[str], metadata: str) -> kinship.Config:
    """Return the common settings in that library's words."""
    return kinship.Config.lan(
        name=name,
        bind=f"127.0.0.1:{port}",
        seeds=seeds,
        meta={"m": metadata},
        keys=[base64.b64encode(settings.KEY).decode()],
        cluster=settings.CLUSTER,
        probe_interval=settings.PROBE_INTERVAL_S,
        probe_timeout=settings.PROBE_TIMEOUT_S,
        indirect_checks=settings.INDIRECT_PROBES,
        suspicion_mult=settings.SUSPICION_MULT,
        suspicion_max_mult=settings.SUSPICION_MAX_MULT,
        expected_confirmations=settings.CONFIRMATIONS,
        gossip_interval=settings.GOSSIP_INTERVAL_S,
        gossip_nodes=settings.GOSSIP_NODES,
        retransmit_mult=settings.RETRANSMIT_MULT,
        push_pull_interval=settings.PUSH_PULL_INTERVAL_S,
    )


def say_view(cluster: kinship.Cluster) -> None:
    """Tell whom this node sees alive."""
    say("view", members={item.name: (item.addr, item.meta.get("m", "")) for item in cluster.members()})


async def watch(cluster: kinship.Cluster, events: kinship.EventStream) -> None:
    """Tell the view after each event."""
    async for _ in events:
        say_view(cluster)


async def main() -> None:
    """Open when told, then report until standard input ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    say("ready")
    first = json.loads(await reader.readline())
    cluster = kinship.Cluster(config(first["name"], first["port"], first["seeds"], first["metadata"]))
    await cluster.start()
    events = cluster.events()
    say_view(cluster)
    say("open")
    watcher = asyncio.create_task(watch(cluster, events))
    while line := await reader.readline():
        order = json.loads(line)
        if order["do"] == "metadata":
            await cluster.set_meta({"m": order["value"]})
        elif order["do"] == "cpu":
            say_cpu()
    watcher.cancel()
    os._exit(0)  # the measurement is over: no leave


asyncio.run(main())
