"""A measured node as seen from outside: its process, the views it told, and how to give it orders."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import trio

from benchmarks.membership.lines import View

MODULES = {"ours": "benchmarks.membership.our_node", "theirs": "benchmarks.membership.their_node"}
VIEWS_MAX = 10_000
"""Views kept of one node; a run makes hundreds."""


class NodeProcess:
    """One process; `serve` reads what it says until it ends."""

    def __init__(self, side: str, changed: trio.lowlevel.ParkingLot) -> None:
        self.name = ""
        self.address = ""
        self.views: list[tuple[int, View]] = []
        self.heard: dict[str, dict[str, Any]] = {}
        """The last line of each kind but views."""
        self._side = side
        self._changed = changed
        self._process: trio.Process | None = None

    async def serve(self) -> None:
        """Run the process and note its lines; kills it when cancelled."""
        command = [sys.executable, "-m", MODULES[self._side]]
        process = self._process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        buffer = b""
        try:
            async for chunk in process.stdout:
                *whole, buffer = (buffer + chunk).split(b"\n")
                for line in whole:
                    self._note(json.loads(line))
        finally:
            self.kill()
            with trio.CancelScope(shield=True):
                await process.wait()

    def _note(self, said: dict[str, Any]) -> None:
        if said["kind"] == "view":
            self.views.append((said["at"], {name: tuple(item) for name, item in said["members"].items()}))
            if len(self.views) > VIEWS_MAX:
                raise RuntimeError(f"{self.name} told more than {VIEWS_MAX} views: something alternates")
        else:
            self.heard[said["kind"]] = said
        self._changed.unpark_all()

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def end(self) -> None:
        """Send SIGKILL and wait until the process, and with it its sockets, is gone."""
        self.kill()
        if self._process is not None:
            await self._process.wait()

    async def tell(self, **order: Any) -> None:
        """Give one order."""
        assert self._process is not None
        assert self._process.stdin is not None
        await self._process.stdin.send_all(json.dumps(order).encode() + b"\n")

    async def open(self, name: str, port: int, seeds: list[str], metadata: str) -> None:
        """Let it take part under this name."""
        self.name, self.address = name, f"127.0.0.1:{port}"
        await self.tell(do="open", name=name, port=port, seeds=seeds, metadata=metadata)

    def first_since(self, since: int, predicate: Callable[[View], bool]) -> int | None:
        """Return when this node first told a view that satisfies `predicate`, at `since` or later."""
        return next((at for at, view in self.views if at >= since and predicate(view)), None)
