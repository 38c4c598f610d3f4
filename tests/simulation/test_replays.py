"""What is recorded and replayed: everything, once, replies too; and a record that lacks something is said to."""

from __future__ import annotations

import pytest

from simulations.harness import formed
from simulations.hostile_network import CLAIMS, replay, unrecorded
from swimcluster.address import Address
from swimcluster.testing import Replay, SimulatedCluster, Wire
from swimcluster.testing.network import SECOND, Network, Recorded


def recording(seconds: float, *, recorded_max: int = 100_000) -> SimulatedCluster:
    cluster = formed(3, 1, network=Network(seed=1, record=True, recorded_max=recorded_max))
    cluster.world.run_for(seconds)
    return cluster


def test_datagrams_requests_and_replies_are_kept():
    network = recording(40).world.network
    assert {message.kind for message in network.recorded or ()} == {"datagram", "request", "reply"}


def test_a_record_is_as_long_as_asked_for():
    assert len(recording(40, recorded_max=7).world.network.recorded or ()) == 7


def test_everything_means_each_message_once():
    cluster = recording(10)
    world = cluster.world
    sent = list(world.network.recorded or ())
    injected: list[Recorded] = []
    world.inject = injected.append  # type: ignore[method-assign]
    Replay(world.now, None, spread_ns=5 * SECOND).start(world)
    world.run_for(5)
    assert injected == sent


def test_an_old_reply_answers_the_next_request_and_changes_nothing():
    cluster = recording(40)
    world = cluster.world
    replies = [m for m in world.network.recorded or () if m.kind == "reply"]
    before = world.digest()
    heard: list[bytes] = []
    for node in world.nodes.values():
        machine = node.machine
        taken = machine.exchange_replied
        machine.exchange_replied = lambda now, number, data, taken=taken: (heard.append(data), taken(now, number, data))
    for message in replies:
        world.inject(message)
    world.run_for(60)
    assert world.digest() != before
    assert {message.data for message in replies} & set(heard)
    assert not cluster.differences()


def test_a_reply_to_nobody_is_counted():
    world = recording(1).world
    unbound = world.network.counts["unbound"]
    world.inject(Recorded(Address("a", 1), Address("nobody", 1), b"x", "reply"))
    assert world.network.counts["unbound"] == unbound + 1


def test_a_replay_of_everything_holds_every_kind():
    row = replay(2, n=5, seconds=60)
    assert row["holds"], row
    assert row["kinds missing"] == ""


@pytest.mark.parametrize("kept", [0, 50])
def test_a_record_that_lost_what_matters_is_said_to_miss_it(kept, monkeypatch):
    monkeypatch.setattr("simulations.hostile_network.KEPT_MAX", kept)
    row = replay(2, n=5, seconds=60)
    assert not row["holds"]
    assert all(kind in str(row["kinds missing"]) for kind in ("Dead", "Left", "from n001", "from n003 before its move"))


def test_an_empty_record_misses_all():
    cluster = formed(2, 1)
    wire = Wire(cluster.config("n000"))
    missing = unrecorded([], wire, dead="a", left="b", moved="c", old=Address("c", 1))
    assert missing == ["request", "reply", *CLAIMS, "from a", "from b", "from c before its move"]
