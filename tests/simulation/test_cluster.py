"""Members in the simulator: they find, lose and regain each other, the same way for the same seed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from simulations.regain import join_lose_and_regain
from swimcluster.address import Address
from swimcluster.member import MemberState
from swimcluster.testing import (
    Crash,
    Partition,
    Readvertise,
    SetMetadata,
    SimulatedCluster,
    Timeline,
    Wire,
    play,
)
from swimcluster.testing.network import SECOND, Network


def test_fifty_members_join_lose_and_regain_members():
    row = join_lose_and_regain(1)
    assert row["holds"], row


@pytest.mark.slow
def test_fifty_members_join_lose_and_regain_members_for_many_seeds():
    """Twenty-five here; all two hundred by `python -m simulations regain --full`."""
    for seed in range(2, 27):
        row = join_lose_and_regain(seed)
        assert row["holds"], row


def busy_digest(seed: int) -> str:
    cluster = SimulatedCluster(5, seed=seed, network=Network(seed=seed, loss=0.05))
    play(cluster.world, [Crash(4 * SECOND, 5 * SECOND, "n001"), Partition(6 * SECOND, SECOND, frozenset({"n002"}))])
    cluster.start_all()
    cluster.world.run_for(15)
    return cluster.world.digest()


def test_equal_seeds_give_equal_runs():
    assert busy_digest(11) == busy_digest(11)
    assert busy_digest(11) != busy_digest(12)


def test_a_run_is_the_same_under_another_hash_seed():
    program = "from tests.simulation.test_cluster import busy_digest\nprint(busy_digest(11))\n"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert digests == {busy_digest(11)}


def test_a_crash_is_noticed_and_the_member_comes_back():
    cluster = SimulatedCluster(3, seed=5)
    cluster.start_all()
    assert cluster.settle(limit_s=10) is not None
    cluster.stop("n001")
    assert "n000 has n001, which does not run" in cluster.differences()
    assert cluster.settle(limit_s=40) is not None
    assert cluster.machine("n000").member("n001").state is MemberState.DEAD
    cluster.start("n001")
    assert cluster.settle(limit_s=5) is not None


def test_a_leaving_member_is_left_not_dead_and_ends():
    cluster = SimulatedCluster(4, seed=6)
    cluster.start_all()
    cluster.world.run_for(2)
    cluster.leave("n003")
    assert cluster.settle(limit_s=5) is not None
    assert cluster.machine("n000").member("n003").state is MemberState.LEFT
    cluster.world.run_for(6)
    assert not cluster.world.nodes["n003"].running


def test_metadata_and_address_reach_every_view():
    cluster = SimulatedCluster(4, seed=7)
    there = Address("10.9.9.9", 99)
    cluster.start_all()
    play(cluster.world, [SetMetadata(3 * SECOND, "n001", b"new"), Readvertise(4 * SECOND, "n002", there)])
    cluster.world.run_for(6)
    assert cluster.settle(limit_s=5) is not None
    assert cluster.view("n003")["n001"].metadata == b"new"
    assert cluster.view("n003")["n002"].address == there


def test_differences_name_what_is_wrong():
    cluster = SimulatedCluster(3, seed=8)
    cluster.start_all()
    cluster.settle(limit_s=10)
    cluster.world.network.cut(None, None)
    cluster.call("n001", "set_metadata", b"unheard")
    assert "n000 has n001 with other metadata" in cluster.differences()
    cluster.world.run_for(60)
    assert "n000 has n001 missing" in cluster.differences()


def test_a_disk_keeps_epoch_and_addresses_unless_it_is_full():
    cluster = SimulatedCluster(3, seed=9)
    cluster.start_all()
    cluster.world.run_for(10)
    node = cluster.world.nodes["n001"]
    kept = dict(node.disk)
    assert b"10.0.0.2" in kept["snapshot"]
    epoch = cluster.machine("n001").local.epoch
    node.disk_full = True
    cluster.stop("n001")
    cluster.places["n001"].wall_skew_ms -= 10**10
    cluster.start("n001")
    assert cluster.machine("n001").local.epoch > epoch
    assert node.disk == kept


def test_a_timeline_tells_a_member_s_life():
    timeline = Timeline("n001", inputs=True)
    cluster = SimulatedCluster(3, seed=10, observers=[timeline])
    timeline.describe = Wire(cluster.config("n000")).describe
    play(cluster.world, [Crash(5 * SECOND, 20 * SECOND, "n001")])
    cluster.start_all()
    cluster.world.run_for(40)
    text = timeline.text()
    for part in ("starts life 1", "begin Crash(at=5s", "ends", "MemberDied n001", "starts life 2", "Ping n001", "Ack"):
        assert part in text
    assert text == timeline.text()


def test_words_for_bytes_that_are_not_of_this_cluster():
    cluster = SimulatedCluster(1, seed=1)
    assert "not a datagram" in Wire(cluster.config("n000")).describe(b"junk")
