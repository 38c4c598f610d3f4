"""The examples about membership do what their first lines say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.fakes.patience import WAIT_S

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run(name: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name)],
        capture_output=True,
        text=True,
        timeout=60,
        env=ENVIRONMENT,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_two_machines_by_hand_meet_and_one_is_found_dead_without_a_second_passing() -> None:
    lines = run("01_two_machines_by_hand.py").splitlines()
    assert any("a: MemberJoined b" in line for line in lines)
    unplugged = next(number for number, line in enumerate(lines) if "unplugged" in line)
    assert [line.split("a: ")[1] for line in lines[unplugged + 1 :]] == ["MemberSuspected b", "MemberDied b"]


def test_the_example_by_hand_fits_two_screens() -> None:
    assert len((ROOT / "examples" / "01_two_machines_by_hand.py").read_text().splitlines()) <= 50


@pytest.mark.slow
def test_metadata_and_vitals_choose_the_freest_member() -> None:
    assert run("03_metadata_and_vitals.py").splitlines()[-1] == "m1 did the dishes for m0"


@pytest.mark.slow
def test_an_own_transport_carries_a_cluster_through_loss() -> None:
    lines = run("04_own_transport.py").splitlines()
    assert len(lines) == 3
    assert all("sees ['a', 'b', 'c']" in line for line in lines)


@pytest.mark.slow
def test_an_asyncio_program_takes_part() -> None:
    assert run("07_asyncio_program.py").splitlines() == [
        "a: b joined",
        "b: twice 21 is 42",
        "a: alone again, as b said that it leaves",
    ]


@pytest.mark.slow
def test_all_members_name_the_same_leaders() -> None:
    before, after = run("08_leader_by_rendezvous.py").splitlines()
    for line in (before, after):
        assert line.count("{'") == 1, line  # a set with one plan: nobody differs


@pytest.mark.slow
async def test_a_trio_node_prints_who_is_alive_and_leaves_on_interrupt() -> None:
    example = str(ROOT / "examples" / "02_trio_node.py")
    node = await trio.lowlevel.open_process(
        [sys.executable, example, "a", "127.0.0.1:0"], stdout=subprocess.PIPE, env=ENVIRONMENT
    )
    assert node.stdout is not None
    text = b""
    with trio.fail_after(WAIT_S):
        while b"Snapshot: a (alive)" not in text:
            text += await node.stdout.receive_some()
        node.send_signal(signal.SIGINT)
        async for piece in node.stdout:
            text += piece
        assert await node.wait() == 0
    await node.stdout.aclose()
    assert text.endswith(b"left\n")
