"""A whole member in a process of its own: prints its view as lines of JSON; ends with its stdin."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import telling
import trio

from swimcluster import Config, NameInUseError, open_cluster, parse_address
from tests.fakes.patience import PATIENT


async def main() -> None:
    settings = json.loads(sys.argv[1])
    bind = parse_address(settings.get("bind", "127.0.0.1:0"))
    config = Config.local(
        name=settings["name"],
        bind=bind,
        seeds=settings.get("seeds", []),
        keys=[settings["key"].encode()],
        state_dir=Path(settings["state_dir"]) if "state_dir" in settings else None,
        **(PATIENT if "patient" in settings else {}),
    )

    try:
        async with open_cluster(config, metadata=settings["name"].encode()) as cluster, trio.open_nursery() as nursery:
            nursery.start_soon(telling.tell, cluster)
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
    except NameInUseError as error:
        sys.exit(str(error))


trio.run(main)
