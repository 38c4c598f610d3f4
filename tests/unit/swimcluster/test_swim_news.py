"""News of others, and what is checked before a member is listed (P16, P17)."""

from __future__ import annotations

import pytest

from swimcluster.errors import PayloadTooLargeError
from swimcluster.events import (
    MemberLeft,
    MetadataChanged,
    NameConflict,
)
from swimcluster.member import MemberState
from swimcluster.messages import Alive, Dead, Left, Suspect
from swimcluster.news import INCARNATION_JUMP_MAX
from tests.fakes.swim_bench import Bench, S, address, tell


def test_metadata_reaches_every_view_and_the_newest_stays():
    bench = Bench()
    bench.cluster(4)
    bench.do(1, lambda swim, now: swim.set_metadata(now, b"one"))
    bench.do(1, lambda swim, now: swim.set_metadata(now, b"two"))
    bench.do(1, lambda swim, now: swim.set_metadata(now, b"two"))
    took = bench.run(2, until=lambda: all(s.member("a").metadata == b"two" for s in bench.machines.values()))
    assert took < 1
    assert bench.machines[1].local.incarnation == 2
    assert bench.heard(MetadataChanged, at="b")
    with pytest.raises(PayloadTooLargeError):
        bench.machines[1].set_metadata(bench.now, b"x" * 513)


def test_the_stored_incarnation_rises_on_any_evidence():
    bench = Bench()
    bench.cluster(3)
    instance = bench.machines[3].local.instance
    bench.kill(3)
    bench.run(15)
    tell(bench, 1, Dead("c", 1, instance, 10, "b"))
    assert bench.machines[1].member("c").incarnation == 10
    tell(bench, 1, Alive("c", "10.0.0.1", 3, 1, instance, 10, b"", b""))
    assert bench.machines[1].member("c").state is MemberState.DEAD
    tell(bench, 1, Alive("c", "10.0.0.1", 3, 1, instance, 11, b"", b""))
    assert "c" in bench.machines[1].core.verifier


def test_newer_words_are_taken_even_where_the_suspicion_came_first():
    bench = Bench()
    bench.cluster(3)
    instance = bench.machines[3].local.instance
    bench.cut = lambda source, destination: 3 in {source, destination}
    tell(bench, 1, Suspect("c", 1, instance, 4, "b"))
    tell(bench, 1, Alive("c", "10.0.0.1", 3, 1, instance, 4, b"newer", b""))
    member = bench.machines[1].member("c")
    assert (member.state, member.metadata, member.incarnation) == (MemberState.SUSPECT, b"newer", 4)


def test_a_second_address_in_one_life_and_a_leap_of_incarnation_are_refused():
    bench = Bench()
    bench.cluster(3)
    instance = bench.machines[3].local.instance
    tell(bench, 1, Alive("c", "10.0.0.1", 66, 1, instance, 5, b"", b""))
    tell(bench, 1, Alive("c", "10.0.0.1", 3, 1, instance, INCARNATION_JUMP_MAX + 1, b"", b""))
    tell(bench, 1, Dead("c", 1, instance, INCARNATION_JUMP_MAX + 1, "b"))
    tell(bench, 3, Dead("c", 1, instance, INCARNATION_JUMP_MAX + 1, "b"))
    assert bench.machines[1].statistics().dropped_implausible == 3
    assert bench.machines[3].statistics().dropped_implausible == 1
    assert bench.machines[1].member("c").address == address(3)
    assert bench.heard(NameConflict, at="a")


def test_failure_news_about_unknown_names_and_lives_is_dropped():
    bench = Bench()
    bench.cluster(2)
    tell(bench, 1, Suspect("ghost", 1, b"nobody!!", 0, "b"), Dead("ghost", 1, b"nobody!!", 0, "b"))
    tell(bench, 1, Suspect("b", 7, b"nobody!!", 0, "b"))
    assert bench.machines[1].statistics().dropped_unknown == 3
    assert bench.machines[1].member("ghost") is None
    assert bench.view(1)["b"] is MemberState.ALIVE


def test_a_death_of_a_later_life_ends_the_earlier_one():
    bench = Bench()
    bench.cluster(3)
    bench.cut = lambda source, destination: 3 in {source, destination}
    tell(bench, 1, Dead("c", 7, b"nobody!!", 0, "b"))
    assert bench.machines[1].member("c").state is MemberState.DEAD


def test_left_after_dead_is_told_as_leaving():
    bench = Bench()
    bench.cluster(3)
    instance = bench.machines[3].local.instance
    bench.kill(3)
    bench.run(15)
    tell(bench, 1, Left("c", 1, instance, 0))
    assert bench.heard(MemberLeft, at="a")


def test_an_own_packet_at_a_newer_incarnation_refutes_and_its_words_are_fetched():
    bench = Bench()
    bench.cluster(3)
    instance = bench.machines[3].local.instance
    tell(bench, 1, Suspect("c", 1, instance, 0, "b"))
    bench.machines[3].core.identity.change("test", incarnation=1, metadata=b"fresh")
    bench.deliver(1, bench.machines[3].core.pack_datagram([], 1, fill=False))
    member = bench.machines[1].member("c")
    assert member.state is MemberState.ALIVE
    assert member.metadata == b"of c"
    assert member.metadata_at < (member.epoch, member.instance, member.incarnation)
    bench.run(0.1)
    assert bench.machines[1].member("c").metadata == b"fresh"


def test_an_own_packet_that_leaps_is_refused():
    bench = Bench()
    bench.cluster(2)
    bench.machines[2].core.identity.change("test", incarnation=INCARNATION_JUMP_MAX + 5)
    bench.deliver(1, bench.machines[2].core.pack_datagram([], 1, fill=False))
    assert bench.machines[1].statistics().dropped_implausible == 1
    assert bench.machines[1].member("b").incarnation == 0


def test_a_later_life_that_writes_is_asked_for_its_words():
    bench = Bench()
    bench.cluster(2)
    bench.machines[2].core.identity.change("test", epoch=5)
    bench.deliver(1, bench.machines[2].core.pack_datagram([], 1, fill=False))
    assert bench.machines[1].member("b").epoch == 1
    bench.run(0.1)
    assert bench.machines[1].member("b").epoch == 5


def test_an_older_incarnation_is_told_of_the_suspicion_and_a_greater_life_is_not_told_of_itself():
    bench = Bench()
    bench.cluster(2)
    bench.machines[1].core.table.live["b"].claim = (
        bench.machines[1].core.table.live["b"].claim._replace(incarnation=3, state=MemberState.SUSPECT)
    )
    bench.deliver(1, bench.machines[2].core.pack_datagram([], 1, fill=False))
    assert bench.machines[1].statistics().stale_answered == 1
    bench.machines[1].core.table.live["b"].claim = (
        bench.machines[1].core.table.live["b"].claim._replace(epoch=2, incarnation=0, state=MemberState.ALIVE)
    )
    bench.run(1)
    assert bench.machines[2].local.epoch >= 1


def test_words_still_missing_are_asked_for_again():
    bench = Bench()
    a, b = bench.cluster(2)
    b.core.identity.change("test", incarnation=1, metadata=b"fresh")
    bench.deliver(1, b.core.pack_datagram([], 1, fill=False))
    for _ in range(2):
        a.transmits()
        bench.now += S
        a.receive_datagram(bench.now, None, b.core.pack_datagram([], 1, fill=False))
    assert a.statistics().introductions == 3
    assert a.member("b").metadata == b"of b"


def test_words_of_its_own_that_it_never_said_are_outbid():
    bench = Bench()
    bench.cluster(2)
    own = bench.machines[2].local
    for port in (1, 2):
        tell(bench, port, Alive("b", "10.0.0.1", 2, 1, own.instance, 4, b"forged", b""), by=3 - port)
    bench.run(1)
    assert (bench.machines[2].local.epoch, bench.machines[2].local.incarnation) == (2, 0)
    assert bench.machines[1].member("b").metadata == own.metadata
    assert bench.machines[2].statistics().local_health == 0
