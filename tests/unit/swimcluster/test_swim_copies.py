"""Two running copies of one process: what gives a copy away, who keeps the name, and what is no sign of one (P7)."""

from __future__ import annotations

import copy

import pytest

from swimcluster.codec import encode_message
from swimcluster.events import MemberRestarted, NameConflict, NameTaken, Outlived
from swimcluster.messages import Alive, Left, Ping, Suspect
from swimcluster.news import INCARNATION_JUMP_MAX
from swimcluster.swim import Swim
from swimcluster.transmits import Exchange, JoinStatus
from tests.fakes.swim_bench import Bench, S, address, tell

HOLDER, COPY = 3, 8


def formed(size: int = 3) -> Bench:
    bench = Bench()
    bench.cluster(size)
    return bench


def copied() -> Bench:
    """Three members, and a running copy of the last at a port nobody knows."""
    bench = formed()
    bench.machines[COPY] = copy.deepcopy(bench.machines[HOLDER])
    bench.flush(COPY)
    return bench


def words(swim: Swim, **changed: object) -> Alive:
    own = swim.local
    said = Alive("c", own.address.host, own.address.port, own.epoch, own.instance, own.incarnation, own.metadata, b"")
    return said._replace(key_ids=swim.core.identity.key_ids, **changed)


def say(bench: Bench, port: int, metadata: bytes) -> None:
    bench.do(port, lambda swim, now: swim.set_metadata(now, metadata))


# Two that differ ------------------------------------------------------------------------------------------------


def test_a_copy_elsewhere_that_hears_the_original_stops_and_nobody_notices():
    bench = copied()
    say(bench, HOLDER, b"new")
    bench.run(15, until=lambda: bench.machines[COPY].join_status is JoinStatus.NAME_IN_USE)
    assert [event.holder for event in bench.heard(NameTaken)] == [address(HOLDER)]
    bench.run(60)
    assert bench.machines[HOLDER].join_status is JoinStatus.JOINED
    assert not bench.heard(MemberRestarted)
    assert bench.machines[1].member("c").metadata == b"new"


def test_an_original_that_hears_its_copy_becomes_another_life_and_the_copy_stops():
    bench = copied()
    before = bench.machines[HOLDER].local
    say(bench, COPY, b"new")
    bench.run(15, until=lambda: bench.machines[COPY].join_status is JoinStatus.NAME_IN_USE)
    bench.run(60)
    after = bench.machines[HOLDER].local
    assert (after.epoch, after.instance != before.instance) == (before.epoch + 1, True)
    assert bench.heard(NameConflict)
    assert {swim.member("c").instance for port, swim in bench.machines.items() if port != COPY} == {after.instance}
    assert len(bench.heard(MemberRestarted)) == 2


def test_two_contents_of_one_version_are_mended():
    bench = copied()
    say(bench, COPY, b"one")
    say(bench, HOLDER, b"other")
    bench.run(15, until=lambda: bench.machines[COPY].join_status is JoinStatus.NAME_IN_USE)
    assert [bench.machines[port].member("c").metadata for port in (1, 2, 3)] == [b"other"] * 3


def test_a_member_is_shown_the_other_words_of_its_version_once_in_a_while():
    bench = formed()
    swim = bench.machines[HOLDER]
    before = swim.local
    bench.sent.clear()
    for metadata in (b"other", b"another"):
        tell(bench, 1, words(swim, metadata=metadata))
        bench.flush(1)
    assert len([sent for _, port, sent in bench.sent if port == 1 and sent.destination == before.address]) == 1
    bench.run(1)
    assert (swim.local.epoch, swim.local.metadata) == (before.epoch + 1, before.metadata)


def test_the_original_of_a_copy_that_moved_stops_whatever_life_the_copy_takes():
    bench = copied()
    bench.do(COPY, lambda swim, now: swim.readvertise(now, address(COPY)))
    bench.run(15, until=lambda: bench.machines[HOLDER].join_status is JoinStatus.NAME_IN_USE)
    assert bench.machines[COPY].join_status is JoinStatus.JOINED


def test_a_copy_that_cannot_dial_its_address_takes_a_life_once_and_yields_when_it_is_outlived():
    bench = copied()
    bench.cut = lambda source, destination: {source, destination} == {HOLDER, COPY}
    say(bench, HOLDER, b"new")
    bench.run(120)
    assert bench.machines[COPY].join_status is JoinStatus.NAME_IN_USE
    assert bench.machines[HOLDER].join_status is JoinStatus.JOINED
    assert len(bench.heard(MemberRestarted, at="a")) <= 4


# What is no sign of a copy --------------------------------------------------------------------------------------


def test_own_words_again_old_ones_and_a_leap_are_no_sign_of_a_copy():
    bench = formed()
    swim = bench.machines[HOLDER]
    first = words(swim)
    say(bench, HOLDER, b"new")
    before = swim.local
    tell(bench, HOLDER, first, words(swim), words(swim, incarnation=before.incarnation + 1 + INCARNATION_JUMP_MAX))
    bench.run(5)
    assert swim.local == before
    assert swim.statistics().dropped_implausible == 1


def test_an_accusation_above_the_own_incarnation_is_refuted_within_the_same_life():
    bench = formed()
    swim = bench.machines[HOLDER]
    before = swim.local
    tell(bench, HOLDER, Suspect("c", before.epoch, before.instance, 7, "b"))
    bench.run(5)
    assert (swim.local.epoch, swim.local.instance, swim.local.incarnation) == (before.epoch, before.instance, 8)


# The question who answers ---------------------------------------------------------------------------------------


def test_nobody_is_asked_twice_at_a_time_and_an_answer_that_comes_late_is_void():
    bench = formed()
    swim = bench.machines[HOLDER]
    ahead = words(swim, incarnation=5)
    bench.sent.clear()
    tell(bench, HOLDER, ahead)
    tell(bench, HOLDER, ahead)
    own = [sent for _, _, sent in bench.sent if isinstance(sent, Exchange) and sent.destination == address(HOLDER)]
    assert len(own) == 1
    bench.do(HOLDER, lambda swim, now: swim.readvertise(now, address(HOLDER + 1)))
    epoch = swim.local.epoch
    bench.run(5)
    assert swim.local.epoch == epoch


def test_a_life_here_is_outlived_once_by_whom_nobody_can_dial():
    bench = formed()
    bench.cut = lambda source, destination: source == destination
    for epoch in (9, 11):
        tell(bench, HOLDER, Alive("c", "10.0.0.1", HOLDER, epoch, b"nobody!!", 0, b"", b""))
        bench.run(2)
    assert [event.epoch for event in bench.heard(Outlived)] == [10]
    assert bench.machines[HOLDER].join_status is JoinStatus.NAME_IN_USE


def test_a_life_here_is_outlived_as_often_as_it_comes_by_whoever_is_here():
    bench = formed()
    for epoch in (9, 11):
        tell(bench, HOLDER, Alive("c", "10.0.0.1", HOLDER, epoch, b"nobody!!", 0, b"", b""))
        bench.run(2)
    assert [event.epoch for event in bench.heard(Outlived)] == [10, 12]


@pytest.mark.parametrize("name", ["b", "c"])
def test_a_ping_of_the_own_instance_without_a_question_is_answered_and_changes_nothing(name):
    bench = formed()
    swim = bench.machines[HOLDER]
    before = swim.local
    ping = encode_message(Ping(1, name, before.instance))
    bench.do(HOLDER, lambda swim, now: swim.core.exchange(address(HOLDER), [ping], swim.core.healer, S))  # type: ignore[arg-type]
    request = next(sent for _, _, sent in reversed(bench.sent) if isinstance(sent, Exchange))
    assert bench.request(HOLDER, request.data) is not None
    assert swim.local == before


def test_a_leaver_makes_nothing_of_words_that_are_not_its_own():
    bench = formed()
    swim = bench.machines[HOLDER]
    ahead = words(swim, incarnation=5)
    bench.do(HOLDER, lambda swim, now: swim.leave(now))
    tell(bench, HOLDER, ahead, Left("c", 1, swim.local.instance, 9))
    assert swim.local.incarnation == 0
