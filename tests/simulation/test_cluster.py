"""Members in the simulator: they find, lose and regain each other, the same way for the same seed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from simulations.regain import join_lose_and_regain
from swimcluster.address import Address
from swimcluster.member import MemberState
from swimcluster.testing import (
    Answers,
    Ask,
    Broadcast,
    Crash,
    Observer,
    Partition,
    Readvertise,
    RotateKeys,
    Send,
    SetMetadata,
    SimulatedCluster,
    Timeline,
    Trouble,
    Weather,
    Wire,
    play,
)
from swimcluster.testing.disk import read_disk
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


def talking(answer) -> tuple[SimulatedCluster, list[tuple[str, object]]]:
    """Three members that know each other, and what their applications hear."""
    cluster, heard = SimulatedCluster(3, seed=9), []

    class Ear(Observer):
        def stepped(self, world, node, kind, sent, events):
            kinds = {"UserMessage", "ReplyReceived", "RequestFailed", "BroadcastReceived"}
            heard.extend((node.name, event) for event in events if type(event).__name__ in kinds)

    cluster.world.watch(Ear())
    Answers(cluster, answer)
    cluster.start_all()
    assert cluster.settle(limit_s=10) is not None
    return cluster, heard


def test_programs_send_ask_and_broadcast_in_the_simulator():
    cluster, heard = talking(lambda asked, asker, payload: asked.encode() + b" to " + asker.encode() + b": " + payload)
    now = cluster.world.now
    play(
        cluster.world, [Send(now, "n000", "n001", b"hi"), Ask(now, "n001", "n002", b"?"), Broadcast(now, "n002", b"!")]
    )
    cluster.world.run_for(5)
    told = sorted((who, type(event).__name__, event.payload) for who, event in heard)
    assert told == [
        ("n000", "BroadcastReceived", b"!"),
        ("n001", "BroadcastReceived", b"!"),
        ("n001", "ReplyReceived", b"n002 to n001: ?"),
        ("n001", "UserMessage", b"hi"),
    ]


def test_requests_fail_once_when_nobody_answers_the_path_is_slow_or_the_asked_one_ends():
    cluster, heard = talking(lambda asked, asker, payload: None if payload == b"silence" else payload)
    now = cluster.world.now
    slow = Weather(now, SECOND, Trouble(sources=frozenset({"n002"}), exchange_delay_ns=20 * SECOND))
    asks = [Ask(now, "n000", "n001", b"silence"), Ask(now + 1, "n000", "n002", b"slow"), Ask(now, "n000", "gone", b"x")]
    play(cluster.world, [slow, *asks])
    cluster.world.run_for(30)
    assert [(who, type(event).__name__) for who, event in heard] == [("n000", "RequestFailed")] * 2
    play(cluster.world, [Ask(cluster.world.now, "n000", "n001", b"silence")])
    cluster.world.run_for(0.1)
    cluster.stop("n001", host_down=False)
    cluster.world.run_for(30)
    assert [type(event).__name__ for _, event in heard] == ["RequestFailed"] * 3


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


def test_a_snapshot_says_who_lives_where_and_who_died_until_that_is_forgotten():
    cluster = SimulatedCluster(4, seed=1, reconnect_for_s=60.0, tombstone_s=60.0)
    cluster.start_all()
    assert cluster.settle(limit_s=30) is not None

    def written() -> dict[str, tuple[str, bool]]:
        known = read_disk(cluster.world.nodes["n000"]).addresses
        return {one.name: (one.address.host, one.failed) for one in known}

    cluster.world.run_for(15)
    assert written() == {f"n00{i}": (f"10.0.0.{i}", False) for i in (1, 2, 3)}
    elsewhere = Address("10.9.9.9", 9)
    cluster.world.move(cluster.world.nodes["n001"], elsewhere)
    cluster.call("n001", "readvertise", elsewhere)
    cluster.stop("n002")
    cluster.world.run_for(30)
    assert written() == {"n001": ("10.9.9.9", False), "n002": ("10.0.0.2", True), "n003": ("10.0.0.3", False)}
    cluster.world.run_for(90)
    cluster.call("n003", "set_metadata", b"some event")
    cluster.world.run_for(6)
    assert "n002" not in written()


def test_a_member_that_has_all_the_keys_it_may_have_refuses_one_more_and_stays():
    cluster = SimulatedCluster(2, seed=1)
    cluster.start_all()
    now = cluster.world.now
    play(cluster.world, [RotateKeys(now + i * SECOND, SECOND // 2, bytes([i]) * 32) for i in range(1, 7)])
    cluster.world.run_for(10)
    assert len(cluster.machine("n001").key_ids()) == 4
    assert cluster.settle(limit_s=30) is not None
