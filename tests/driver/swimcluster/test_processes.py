"""Real processes on loopback: UDP and TCP, the real clock, `kill -9`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio
from member_processes import Nodes, alive, is_state, with_nodes

pytestmark = pytest.mark.slow


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
        await b.sees(alive("a", "b"), 10)
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
        await b.sees(alive("a", "b"), 10)
        second = await nodes.start("b", seeds=(a.address,))
        with trio.fail_after(30):
            assert await second.process.wait() == 1
        await trio.sleep(0.2)
        assert f"the name 'b' is held by a live member at {b.address}" in second.errors.decode()
        assert a.view["b"]["address"] == b.address
        assert b.process.stdin is not None
        await b.process.stdin.aclose()
        await a.sees(is_state("b", "LEFT"), 5)
        with trio.fail_after(30):
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
