"""Starts members as processes of their own and reads what they see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from tests.fakes.patience import WAIT_S

PROGRAM = Path(__file__).with_name("member_program.py")
OVER_HTTP = Path(__file__).with_name("http_member_program.py")
ROOT = Path(__file__).parents[3]
View = dict[str, dict[str, Any]]


class Node:
    """One member process and the last view it told."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.name = ""
        self.port = 0
        self.refused = 0
        """Datagrams its own system would not send."""
        self.view: View = {}
        self.errors = b""
        self.history: list[View] = []
        """Every view told so far, oldest first."""
        self.times: list[float] = []
        """When each was told, on the machine's monotonic clock."""
        self.is_put_to_sleep = False
        """Whether a test stops this process on purpose."""
        self._told = trio.Event()

    async def read(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        assert self.process.stdout is not None
        rest = b""
        async for piece in self.process.stdout:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                told = json.loads(line)
                self.name, self.port, self.view = told["name"], told["port"], told["view"]
                self.refused = told["refused"]
                self.history.append(self.view)
                self.times.append(told["at"])
                self._told.set()
                self._told = trio.Event()

    async def read_errors(self) -> None:
        assert self.process.stderr is not None
        async for piece in self.process.stderr:
            self.errors += piece

    def forget(self) -> None:
        """Let the history begin here."""
        self.history.clear()
        self.times.clear()

    async def says(self, text: str) -> None:
        """Wait until the process has written `text` to its stderr, which may be read after its end."""
        with trio.move_on_after(WAIT_S):
            while text not in self.errors.decode():
                await trio.sleep(0.05)
        assert text in self.errors.decode(), self.errors

    async def sees(self, claim: Callable[[View], bool], within_s: float = WAIT_S) -> float:
        """Wait until the view satisfies `claim`; returns the seconds it took."""
        started = time.monotonic()
        with trio.move_on_after(within_s):
            while not claim(self.view):
                await self._told.wait()
            return time.monotonic() - started
        raise AssertionError(f"not seen within {within_s} s: {self.view} {self.errors.decode()}")

    @property
    def address(self) -> str:
        """Where it listens: known once it has told its first view, which others may see it before."""
        assert self.port, "this process has told nothing yet: wait for what it sees first"
        return f"127.0.0.1:{self.port}"


class Nodes:
    """Starts member processes and ends exactly those."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._started: list[Node] = []

    async def start(
        self,
        name: str,
        *,
        seeds: tuple[str, ...] = (),
        key: str = "a key for these tests",
        prefix: tuple[str, ...] = (),
        program: Path = PROGRAM,
        **more: str,
    ) -> Node:
        """Start a member program; `prefix` is a command that runs it, such as `ip netns exec NAME`."""
        settings = {"name": name, "seeds": list(seeds), "key": key, **more}
        process = await trio.lowlevel.open_process(
            [*prefix, sys.executable, str(program), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        node = Node(process)
        self._started.append(node)
        await self._nursery.start(node.read)
        self._nursery.start_soon(node.read_errors)
        return node

    async def close(self) -> None:
        with trio.CancelScope(shield=True):
            for node in self._started:
                if node.process.poll() is None:
                    node.process.kill()
                await node.process.wait()
                for stream in (node.process.stdin, node.process.stdout, node.process.stderr):
                    if stream is not None:
                        await stream.aclose()


def alive(*names: str) -> Callable[[View], bool]:
    return lambda view: sorted(n for n, m in view.items() if m["state"] in {"ALIVE", "SUSPECT"}) == sorted(names)


def is_state(name: str, state: str) -> Callable[[View], bool]:
    return lambda view: view.get(name, {}).get("state") == state


async def with_nodes(body: Callable[[Nodes], Any]) -> None:
    async with trio.open_nursery() as nursery:
        nodes = Nodes(nursery)
        try:
            with trio.fail_after(10 * WAIT_S):
                await body(nodes)
        finally:
            await nodes.close()
            nursery.cancel_scope.cancel()
