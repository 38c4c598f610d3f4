"""Real processes on loopback: UDP and TCP, the real clock, `kill -9`."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio
from member_processes import Nodes, alive, is_state, with_nodes

from saiserve.bench.ports import free_port
from swimcluster.snapshot import load_snapshot
from swimcluster.state_file import snapshot_path
from tests.fakes.patience import WAIT_S

pytestmark = pytest.mark.slow


async def test_two_processes_meet_one_is_killed_noticed_and_returns_on_another_port() -> None:
    async def body(nodes: Nodes) -> None:
        a = await nodes.start("a")
        await a.sees(alive("a"))
        b = await nodes.start("b", seeds=(a.address,))
        await a.sees(alive("a", "b"))
        await b.sees(alive("a", "b"))
        b.process.send_signal(signal.SIGKILL)
        took = await a.sees(is_state("b", "DEAD"))
        print(f"killed -> DEAD in {took:.2f} s")
        again = await nodes.start("b", seeds=(a.address,))
        took = await a.sees(lambda view: alive("a", "b")(view) and view["b"]["address"] != b.address)
        print(f"back on another port {took:.2f} s after its process was started")
        await again.sees(alive("a", "b"))
        assert a.view["b"]["address"] == again.address

    await with_nodes(body)


async def test_a_killed_process_is_back_though_nobody_need_have_missed_it() -> None:
    async def body(nodes: Nodes) -> None:
        a = await nodes.start("a")
        await a.sees(alive("a"))
        b = await nodes.start("b", seeds=(a.address,))
        await a.sees(alive("a", "b"))
        await b.sees(alive("a", "b"))
        old_epoch = a.view["b"]["epoch"]
        b.process.send_signal(signal.SIGKILL)
        again = await nodes.start("b", seeds=(a.address,))
        await a.sees(lambda view: alive("a", "b")(view) and view["b"]["address"] != b.address)
        await again.sees(alive("a", "b"))
        assert a.view["b"]["epoch"] > old_epoch

    await with_nodes(body)


async def test_a_process_that_ends_is_left_and_a_second_holder_of_a_name_exits_with_a_sentence() -> None:
    async def body(nodes: Nodes) -> None:
        a = await nodes.start("a", patient="yes")
        await a.sees(alive("a"))
        b = await nodes.start("b", seeds=(a.address,), patient="yes")
        await a.sees(alive("a", "b"))
        await b.sees(alive("a", "b"))
        second = await nodes.start("b", seeds=(a.address,), patient="yes")
        with trio.fail_after(WAIT_S):
            assert await second.process.wait() == 1
        await second.says(f"the name 'b' is held by a live member at {b.address}")
        assert a.view["b"]["address"] == b.address
        assert b.process.stdin is not None
        await b.process.stdin.aclose()
        await a.sees(is_state("b", "LEFT"))
        with trio.fail_after(WAIT_S):
            assert await b.process.wait() == 0

    await with_nodes(body)


async def test_a_process_that_was_stopped_for_long_is_dead_then_back_in_both_views() -> None:
    async def body(nodes: Nodes) -> None:
        a = await nodes.start("a")
        await a.sees(alive("a"))
        b = await nodes.start("b", seeds=(a.address,))
        for node in (a, b):
            await node.sees(alive("a", "b"))
        b.process.send_signal(signal.SIGSTOP)
        await a.sees(is_state("b", "DEAD"))
        b.process.send_signal(signal.SIGCONT)
        await a.sees(alive("a", "b"))
        await b.sees(alive("a", "b"))

    await with_nodes(body)


def knows(folder: Path, name: str, *others: str) -> bool:
    """Whether the state file of a member names these others."""
    snapshot, _ = load_snapshot(snapshot_path(folder, "default", name))
    return {known.name for known in snapshot.addresses} == set(others)


async def test_all_processes_killed_come_back_from_their_state_files_without_seeds(tmp_path: Path) -> None:
    async def body(nodes: Nodes) -> None:
        binds = {name: f"127.0.0.1:{free_port()}" for name in "abc"}  # nobody else takes one while its process is away
        started = []
        for name, bind in binds.items():
            seeds = (binds["a"],) if started else ()
            started.append(await nodes.start(name, bind=bind, seeds=seeds, state_dir=str(tmp_path)))
            await started[-1].sees(bool)
        for node in started:
            await node.sees(alive(*binds))
        with trio.fail_after(WAIT_S):
            while not all(knows(tmp_path, name, *set(binds) - {name}) for name in binds):
                await trio.sleep(0.1)
        for node in started:
            node.process.send_signal(signal.SIGKILL)
            await node.process.wait()
        back = [await nodes.start(name, bind=bind, state_dir=str(tmp_path)) for name, bind in binds.items()]
        for node in back:
            await node.sees(alive(*binds))

    await with_nodes(body)
