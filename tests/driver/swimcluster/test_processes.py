"""Real processes on loopback: UDP and TCP, the real clock, `kill -9`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("member_program.py")
ROOT = Path(__file__).parents[3]
View = dict[str, dict[str, Any]]


class Node:
    """One member process and the last view it told."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.port = 0
        self.view: View = {}
        self.errors = b""
        self._told = trio.Event()

    async def read(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        assert self.process.stdout is not None
        rest = b""
        async for piece in self.process.stdout:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                told = json.loads(line)
                self.port, self.view = told["port"], told["view"]
                self._told.set()
                self._told = trio.Event()

    async def read_errors(self) -> None:
        assert self.process.stderr is not None
        async for piece in self.process.stderr:
            self.errors += piece

    async def sees(self, claim: Callable[[View], bool], within_s: float) -> float:
        """Wait until the view satisfies `claim`; returns the seconds it took."""
        started = time.monotonic()
        with trio.move_on_after(within_s):
            while not claim(self.view):
                await self._told.wait()
            return time.monotonic() - started
        raise AssertionError(f"not seen within {within_s} s: {self.view} {self.errors.decode()}")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class Nodes:
    """Starts member processes and ends exactly those."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._started: list[Node] = []

    async def start(
        self, name: str, *, seeds: tuple[str, ...] = (), key: str = "a key for these tests", **more: str
    ) -> Node:
        settings = {"name": name, "seeds": list(seeds), "key": key, **more}
        process = await trio.lowlevel.open_process(
            [sys.executable, str(PROGRAM), json.dumps(settings)],
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
            with trio.fail_after(90):
                await body(nodes)
        finally:
            await nodes.close()
            nursery.cancel_scope.cancel()


async def test_two_processes_meet_one_is_killed_noticed_and_returns_on_another_port() -> None:
    async def body(nodes: Nodes) -> None:
        a = await nodes.start("a")
        await a.sees(alive("a"), 10)
        b = await nodes.start("b", seeds=(a.address,))
        await a.sees(alive("a", "b"), 10)
        await b.sees(alive("a", "b"), 10)
        b.process.send_signal(signal.SIGKILL)
        took = await a.sees(is_state("b", "DEAD"), 20)
        print(f"killed -> DEAD in {took:.2f} s")
        again = await nodes.start("b", seeds=(a.address,))
        took = await a.sees(lambda view: alive("a", "b")(view) and view["b"]["address"] != b.address, 10)
        print(f"back on another port {took:.2f} s after its process was started")
        await again.sees(alive("a", "b"), 5)
        assert a.view["b"]["address"] == again.address

    await with_nodes(body)


async def test_a_killed_process_is_back_within_five_seconds_though_nobody_missed_it_yet() -> None:
    async def body(nodes: Nodes) -> None:
        a = await nodes.start("a")
        await a.sees(alive("a"), 10)
        b = await nodes.start("b", seeds=(a.address,))
        await a.sees(alive("a", "b"), 10)
        old_epoch = a.view["b"]["epoch"]
        b.process.send_signal(signal.SIGKILL)
        again = await nodes.start("b", seeds=(a.address,))
        await a.sees(lambda view: alive("a", "b")(view) and view["b"]["address"] != b.address, 5)
        await again.sees(alive("a", "b"), 5)
        assert a.view["b"]["epoch"] > old_epoch

    await with_nodes(body)


async def test_a_process_that_ends_is_left_and_a_second_holder_of_a_name_exits_with_a_sentence() -> None:
    async def body(nodes: Nodes) -> None:
        a = await nodes.start("a")
        await a.sees(alive("a"), 10)
        b = await nodes.start("b", seeds=(a.address,))
        await a.sees(alive("a", "b"), 10)
        second = await nodes.start("b", seeds=(a.address,))
        with trio.fail_after(10):
            assert await second.process.wait() == 1
        await trio.sleep(0.2)
        assert f"the name 'b' is held by a live member at {b.address}" in second.errors.decode()
        assert a.view["b"]["address"] == b.address
        assert b.process.stdin is not None
        await b.process.stdin.aclose()
        await a.sees(is_state("b", "LEFT"), 5)
        with trio.fail_after(10):
            assert await b.process.wait() == 0

    await with_nodes(body)


async def test_a_process_that_was_stopped_for_long_is_dead_then_back_in_both_views() -> None:
    async def body(nodes: Nodes) -> None:
        a = await nodes.start("a")
        await a.sees(alive("a"), 10)
        b = await nodes.start("b", seeds=(a.address,))
        await b.sees(alive("a", "b"), 10)
        b.process.send_signal(signal.SIGSTOP)
        await a.sees(is_state("b", "DEAD"), 25)
        b.process.send_signal(signal.SIGCONT)
        await a.sees(alive("a", "b"), 10)
        await b.sees(alive("a", "b"), 10)

    await with_nodes(body)


async def test_all_processes_killed_come_back_from_their_state_files_without_seeds(tmp_path: Path) -> None:
    async def body(nodes: Nodes) -> None:
        a = await nodes.start("a", state_dir=str(tmp_path))
        await a.sees(alive("a"), 10)
        b = await nodes.start("b", seeds=(a.address,), state_dir=str(tmp_path))
        c = await nodes.start("c", seeds=(a.address,), state_dir=str(tmp_path))
        for node in (a, b, c):
            await node.sees(alive("a", "b", "c"), 10)
        await trio.sleep(6)  # the files are written at most every five seconds
        for node in (a, b, c):
            node.process.send_signal(signal.SIGKILL)
            await node.process.wait()
        back = [
            await nodes.start(name, bind=node.address, state_dir=str(tmp_path))
            for name, node in (("a", a), ("b", b), ("c", c))
        ]
        for node in back:
            await node.sees(alive("a", "b", "c"), 15)

    await with_nodes(body)
