"""What a member program prints: its view as a line of JSON, at each change and each fifth of a second."""

from __future__ import annotations

import json
import time
from typing import Any

import trio

from swimcluster import Cluster, Member

EVERY_S = 0.2


def facts(member: Member) -> dict[str, Any]:
    """Return what the tests look at."""
    epoch, instance, incarnation = member.metadata_at
    return {
        "state": member.state.name,
        "address": str(member.address),
        "epoch": member.epoch,
        "instance": member.instance.hex(),
        "incarnation": member.incarnation,
        "words": [epoch, instance.hex(), incarnation],
        "metadata": member.metadata.hex(),
    }


def say(cluster: Cluster) -> None:
    """Print the view; the time is the machine's monotonic clock, which all processes share."""
    view = {member.name: facts(member) for member in (*cluster.departed, *cluster.members)}
    refused = getattr(cluster.transport_counters, "send_errors", cluster.statistics().sends_failed)
    line = {
        "at": time.monotonic(),
        "name": cluster.local.name,
        "port": cluster.local.address.port,
        "refused": refused,
        "view": view,
    }
    print(json.dumps(line), flush=True)


async def tell(cluster: Cluster) -> None:
    """Print until cancelled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell_changes, cluster)
        while True:
            say(cluster)
            await trio.sleep(EVERY_S)


async def _tell_changes(cluster: Cluster) -> None:
    async with cluster.subscribe() as events:
        async for _ in events:
            say(cluster)
