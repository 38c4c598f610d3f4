"""One swimcluster member under measurement; takes its orders from standard input (`lines.py`)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import trio

from benchmarks.membership import settings
from benchmarks.membership.lines import say, say_cpu
from swimcluster import Address, Cluster, Config, open_cluster


def config(name: str, port: int, seeds: list[str]) -> Config:
    """Return the common settings in this library's words."""
    return Config.lan(
        name=name,
        advertise=Address("127.0.0.1", port),
        seeds=seeds,
        keys=[settings.KEY],
        cluster=settings.CLUSTER,
        probe_interval_s=settings.PROBE_INTERVAL_S,
        probe_timeout_s=settings.PROBE_TIMEOUT_S,
        indirect_probes=settings.INDIRECT_PROBES,
        suspicion_mult=float(settings.SUSPICION_MULT),
        suspicion_max_mult=float(settings.SUSPICION_MAX_MULT),
        confirmations=settings.CONFIRMATIONS,
        gossip_interval_s=settings.GOSSIP_INTERVAL_S,
        gossip_nodes=settings.GOSSIP_NODES,
        retransmit_mult=settings.RETRANSMIT_MULT,
        push_pull_interval_s=settings.PUSH_PULL_INTERVAL_S,
    )


async def orders() -> AsyncIterator[dict[str, Any]]:
    """Yield what is written to standard input."""
    buffer = b""
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as stream:
        async for chunk in stream:
            *whole, buffer = (buffer + chunk).split(b"\n")
            for line in whole:
                yield json.loads(line)


def say_view(cluster: Cluster) -> None:
    """Tell whom this node sees alive."""
    say("view", members={item.name: (str(item.address), item.metadata.decode()) for item in cluster.members})


async def watch(cluster: Cluster) -> None:
    """Tell the view after each event."""
    async with cluster.subscribe() as events:
        async for _ in events:
            say_view(cluster)


async def main() -> None:
    """Open when told, then report until standard input ends."""
    say("ready")
    given = orders()
    first = await anext(given)
    chosen = config(first["name"], first["port"], first["seeds"])
    async with open_cluster(chosen, metadata=first["metadata"].encode()) as cluster, trio.open_nursery() as nursery:
        nursery.start_soon(watch, cluster)
        say("open")
        async for order in given:
            if order["do"] == "metadata":
                cluster.set_metadata(order["value"].encode())
            elif order["do"] == "cpu":
                say_cpu()
        os._exit(0)  # the measurement is over: no leave


trio.run(main)
