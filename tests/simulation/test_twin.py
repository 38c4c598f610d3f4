"""A running member copied with its memory: what the fault does, and what becomes of the name."""

from __future__ import annotations

import pytest

from simulations.harness import EventLog, formed
from swimcluster.address import Address
from swimcluster.testing import SimulatedCluster, Twin, play, shrink, stop_refused
from swimcluster.testing.network import SECOND
from swimcluster.transmits import JoinStatus

ELSEWHERE = Address("10.200.0.1", 7000)
VICTIM, COPY = "n002", "n002'0"


def twinned(address: Address | None = ELSEWHERE, *, seed: int = 1, for_s: int = 600) -> SimulatedCluster:
    cluster = formed(5, seed)
    stop_refused(cluster.world)
    cluster.world.run_for(5)
    play(cluster.world, [Twin(cluster.world.now, for_s * SECOND, VICTIM, address)])
    cluster.world.run_for(0)
    return cluster


def test_the_copy_has_memory_instance_and_clock_of_the_original_and_shares_nothing():
    cluster = twinned()
    original, copy = cluster.machine(VICTIM), cluster.machine(COPY)
    assert copy.local == original.local
    assert copy.members() == original.members()
    world = cluster.world
    assert world.nodes[COPY].local(world.now) == world.nodes[VICTIM].local(world.now)
    cluster.call(COPY, "set_metadata", b"new")
    assert original.local.metadata == b"n002"


def test_a_copy_elsewhere_is_unnoticed_while_neither_changes():
    cluster = twinned()
    log = EventLog("MemberDied", "MemberMoved", "MemberRestarted", "MemberLeft").watch(cluster)
    cluster.world.run_for(120)
    assert not [h for h in log.happenings if h.observer != COPY]
    assert cluster.machine(VICTIM).join_status is JoinStatus.JOINED
    assert cluster.machine(COPY).join_status is JoinStatus.JOINED


def test_of_two_copies_the_one_that_moved_has_the_name_and_the_other_stops():
    cluster = twinned()
    cluster.call(COPY, "readvertise", ELSEWHERE)
    cluster.world.run_for(120)
    assert VICTIM not in cluster.running()
    assert not cluster.differences()
    assert cluster.view("n000")[VICTIM].address == ELSEWHERE


def test_a_copy_at_the_same_address_takes_the_packets_and_gives_them_back_at_its_end():
    cluster = twinned(None, for_s=30)
    world = cluster.world
    assert world.network.holder(world.nodes[VICTIM].address) == COPY
    world.run_for(31)
    assert not world.nodes[COPY].running
    assert world.network.holder(world.nodes[VICTIM].address) == VICTIM
    assert cluster.settle(limit_s=60) is not None


def test_a_copy_that_crashes_starts_again_as_a_process_of_its_own():
    cluster = twinned()
    cluster.stop(COPY)
    cluster.start(COPY)
    assert cluster.machine(COPY).local.instance != cluster.machine(VICTIM).local.instance


def test_nobody_is_copied_who_does_not_run():
    cluster = formed(3, 1)
    cluster.stop(VICTIM)
    assert Twin(0, SECOND, VICTIM).start(cluster.world) is None


def test_a_twin_can_be_shrunk_like_any_fault():
    smallest = shrink((Twin(0, 8 * SECOND, VICTIM, ELSEWHERE),), lambda s: bool(s) and s[0].for_ns >= SECOND)
    assert smallest == (Twin(0, SECOND, VICTIM, ELSEWHERE),)


@pytest.mark.parametrize("speaker", [VICTIM, COPY])
def test_two_copies_that_differ_do_not_alternate(speaker):
    cluster = twinned()
    log = EventLog("MetadataChanged", "MemberRestarted").watch(cluster)
    cluster.call(speaker, "set_metadata", b"new")
    cluster.world.run_for(180)
    assert sum(h.observer == "n000" for h in log.happenings) <= 2
    assert COPY not in cluster.running()
    assert not cluster.differences()


def test_two_copies_that_say_different_things_at_once_leave_one_content():
    cluster = twinned()
    cluster.call(COPY, "set_metadata", b"one")
    cluster.call(VICTIM, "set_metadata", b"other")
    assert cluster.settle(limit_s=15, among=[place for place in cluster.running() if place != COPY]) is not None
    cluster.world.run_for(15)
    assert COPY not in cluster.running()
    assert {cluster.view(observer)[VICTIM].metadata for observer in cluster.running()} == {b"other"}


@pytest.mark.parametrize("speaker", [VICTIM, COPY])
def test_of_two_copies_at_one_address_the_one_that_is_reached_there_holds_the_name(speaker):
    cluster = twinned(None)
    cluster.call(speaker, "set_metadata", b"new")
    cluster.world.run_for(60)
    assert VICTIM not in cluster.running()
    assert not cluster.differences()
