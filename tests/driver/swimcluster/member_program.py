"""A whole member in a process of its own: prints its view as a line of JSON at each change; ends with its stdin."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio

from swimcluster import Cluster, Config, NameInUseError, open_cluster, parse_address


def say(cluster: Cluster) -> None:
    view = {
        member.name: {"state": member.state.name, "address": str(member.address), "epoch": member.epoch}
        for member in (*cluster.departed, *cluster.members)
    }
    print(json.dumps({"port": cluster.local.address.port, "view": view}), flush=True)


async def main() -> None:
    settings = json.loads(sys.argv[1])
    bind = parse_address(settings.get("bind", "127.0.0.1:0"))
    config = Config.local(
        name=settings["name"],
        bind=bind,
        seeds=settings.get("seeds", []),
        keys=[settings["key"].encode()],
        state_dir=Path(settings["state_dir"]) if "state_dir" in settings else None,
    )

    async def watch(cluster: Cluster) -> None:
        async with cluster.subscribe() as events:
            async for _ in events:
                say(cluster)

    try:
        async with open_cluster(config, metadata=settings["name"].encode()) as cluster, trio.open_nursery() as nursery:
            nursery.start_soon(watch, cluster)
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
    except NameInUseError as error:
        sys.exit(str(error))


trio.run(main)
