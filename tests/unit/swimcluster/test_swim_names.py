"""Names, lives and joining (P1 to P9, P16, P17, P22)."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from swimcluster.address_conflicts import TOLD_MAX, AddressConflicts
from swimcluster.codec import EPOCH_MAX, INCARNATION_MAX, encode_message
from swimcluster.config import Config
from swimcluster.errors import ConfigError, PayloadTooLargeError
from swimcluster.events import (
    AddressConflict,
    JoinAttemptFailed,
    Joined,
    MemberDied,
    MemberJoined,
    MemberLeft,
    MemberMoved,
    MemberRestarted,
    MetadataChanged,
    NameConflict,
    NameTaken,
    Outlived,
)
from swimcluster.joining import CHECKS_MAX, SEEDS_MAX
from swimcluster.mac import FrameKind, seal
from swimcluster.member import MemberState
from swimcluster.messages import Ack, Alive, Dead, Left, Nack, Suspect, Sync, SyncReply, Verdict
from swimcluster.news import INCARNATION_JUMP_MAX
from swimcluster.swim import Swim
from swimcluster.transmits import Exchange, JoinStatus
from tests.fakes.swim_bench import KEY, MS, Bench, S, address, machine

HERE = {"now": 0, "epoch": 1, "instance": b"instance", "rng": random.Random(0)}


def tell(bench: Bench, port: int, *messages: object, by: int = 2) -> None:
    """Let the machine at `by` send these messages to the one at `port`."""
    encoded = [encode_message(message) for message in messages]  # type: ignore[arg-type]
    bench.deliver(port, bench.machines[by].core.pack_datagram(encoded, 1, fill=False))


# Making one -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "fault"),
    [({"instance": b"short"}, "8 random bytes"), ({"epoch": -1}, "epoch"), ({"epoch": EPOCH_MAX + 1}, "epoch")],
)
def test_a_machine_out_of_range_is_refused(change, fault):
    config = Config.lan(name="a", advertise="h:1", keys=[KEY])
    with pytest.raises(ConfigError, match=fault):
        Swim(config, **{**HERE, **change})


def test_a_machine_needs_an_address_and_metadata_that_fits():
    with pytest.raises(ConfigError, match="advertise"):
        Swim(Config.lan(name="a", keys=[KEY]), **HERE)
    with pytest.raises(PayloadTooLargeError):
        Swim(Config.lan(name="a", advertise="h:1", keys=[KEY]), **HERE, metadata=b"x" * 513)


def test_a_first_node_is_alone_and_in():
    bench = Bench()
    a = bench.add("a", 1)
    assert a.join_status is JoinStatus.JOINED
    assert [member.name for member in a.members()] == ["a"]
    assert a.local.is_local
    assert a.member("a") == a.local
    assert a.member("b") is None


# Joining --------------------------------------------------------------------------------------------------------


def test_joiners_find_everybody_through_one_seed():
    bench = Bench()
    bench.cluster(5)
    assert bench.all_see(*"abcde")
    assert all(swim.join_status is JoinStatus.JOINED for swim in bench.machines.values())


def test_all_works_where_the_carrier_cannot_tell_the_source():
    bench = Bench(tells_source=False)
    bench.cluster(4)
    bench.kill(4)
    bench.run(12, until=lambda: bench.all_see(*"abc"))


def test_a_node_whose_seed_is_away_keeps_trying_and_says_so():
    bench = Bench()
    b = bench.add("b", 2, seeds=[1])
    bench.run(60)
    failed = bench.heard(JoinAttemptFailed)
    assert b.join_status is JoinStatus.JOINING
    assert b.isolated
    assert 4 <= len(failed) <= 12
    assert failed[-1].retry_in_s == 15.0
    assert failed[-1].seeds == (address(1),)
    bench.add("a", 1)
    bench.run(20, until=lambda: bench.all_see("a", "b"))
    assert [event.seed for event in bench.heard(Joined)] == [address(1)]


def test_a_seed_that_is_this_node_itself_is_no_member():
    bench = Bench()
    b = bench.add("b", 2, seeds=[2])
    bench.run(60)
    assert b.join_status is JoinStatus.JOINED
    assert [member.name for member in b.members()] == ["b"]
    assert not bench.heard(JoinAttemptFailed)
    assert not b.isolated


def test_an_explicit_join_says_how_it_ended():
    bench = Bench()
    bench.cluster(2)
    bench.cluster_b = bench.add("z", 9)  # type: ignore[attr-defined]
    bench.do(1, lambda swim, now: swim.join(now, [address(8), address(7)]))
    bench.run(1)
    (failed,) = bench.heard(JoinAttemptFailed, at="a")
    assert failed.is_explicit
    assert failed.seeds == (address(8), address(7))
    bench.do(1, lambda swim, now: swim.join(now, [address(9)]))
    bench.run(5, until=lambda: bench.all_see("a", "b", "z"))
    assert bench.heard(Joined, at="a")


def test_an_explicit_join_of_many_seeds_dials_a_few_at_a_time():
    bench = Bench()
    bench.add("a", 1)
    bench.do(1, lambda swim, now: swim.join(now, [address(port) for port in range(10, 20)]))
    assert len(bench.sent) == 4
    bench.run(1)
    assert len([t for _, _, t in bench.sent]) >= 10
    assert bench.heard(JoinAttemptFailed)[0].is_explicit


def test_more_seeds_than_can_be_dialled_at_once_are_tried_in_turn():
    bench = Bench()
    bench.add("b", 2, seeds=range(10, 21))
    bench.run(30)
    assert {t.destination.port for _, _, t in bench.sent} == set(range(10, 21))
    swim = bench.machines[2]
    swim.join(bench.now, [address(port) for port in range(100, 100 + 2 * SEEDS_MAX)])
    assert len(swim.core.joiner._seeds) == SEEDS_MAX


def test_addresses_from_disk_bring_a_node_back_and_are_then_forgotten():
    bench = Bench()
    bench.cluster(3)
    d = bench.add("d", 4, seeds=[50])
    bench.do(4, lambda swim, now: swim.learn_addresses(now, [address(2), address(3)]))
    bench.run(10, until=lambda: bench.all_see(*"abcd"))
    bench.run(80)
    assert list(d.core.joiner._seeds) == [address(50)]


def test_a_reply_out_of_turn_is_a_failed_dial():
    bench = Bench()
    bench.add("b", 2, seeds=[1])
    a = bench.add("a", 1)
    a.core.joiner.answer = lambda now, packet, sync: [encode_message(Sync(0))]  # type: ignore[method-assign]
    bench.run(5)
    assert bench.heard(JoinAttemptFailed, at="b")


# Lives ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_node_back_on_another_port_with_a_lost_epoch_is_in_every_view_within_five_seconds(is_clean):
    for seed in range(4):
        bench = Bench(seed=seed)
        bench.cluster(3)
        bench.kill(3)
        bench.run(20.0 if is_clean else 0.5)
        bench.add("c", 7, epoch=1, seeds=[1, 2])
        took = bench.run(5, until=lambda: all(s.member("c").address == address(7) for s in bench.machines.values()))  # noqa: B023
        bench.run(2)
        assert took < 5
        assert bench.all_see("a", "b", "c")


def test_a_node_restarted_in_place_replaces_itself_at_once():
    bench = Bench()
    bench.cluster(3)
    bench.kill(3)
    bench.add("c", 3, epoch=1, seeds=[1], instance=b"\0" * 8, metadata=b"new")
    took = bench.run(5, until=lambda: all(s.member("c").metadata == b"new" for s in bench.machines.values()))
    assert took < 1
    assert {event.member.name for event in bench.heard(MemberRestarted)} == {"c"}
    assert not bench.heard(MemberDied)


def test_a_joiner_whose_names_holder_is_gone_asks_again_within_a_few_round_trips():
    bench = Bench()
    bench.cluster(3)
    bench.kill(3)
    bench.add("c", 3, epoch=9, seeds=[1], metadata=b"new")
    took = bench.run(1, until=lambda: all(s.member("c").metadata == b"new" for s in bench.machines.values()))
    assert took < 0.05


def test_a_joiner_exchanges_state_again_soon_for_its_seed_may_have_been_as_new_as_itself():
    bench = Bench()
    bench.cluster(4)
    bench.add("x", 24, seeds=[])
    bench.add("y", 25, seeds=[1])
    joined_at = bench.now
    bench.run(4)
    dials = [at - joined_at for at, port, sent in bench.sent if port == 25 and isinstance(sent, Exchange)]
    assert len(dials) == 2
    assert S <= dials[1] <= 2 * S + 10 * MS


def test_a_second_live_holder_of_a_name_is_turned_away_and_no_view_changes():
    bench = Bench()
    bench.cluster(3)
    second = bench.add("c", 7, epoch=99, seeds=[1])
    bench.run(10)
    assert second.join_status is JoinStatus.NAME_IN_USE
    assert second.next_deadline() is None
    assert [event.holder for event in bench.heard(NameTaken)] == [address(3)]
    assert not bench.heard(MemberRestarted)
    assert all(swim.member("c").address == address(3) for port, swim in bench.machines.items() if port != 7)
    frames = len(bench.sent)
    tell(bench, 7, by=1)
    bench.do(7, lambda swim, now: swim.advance(now))
    assert bench.machines[7].exchange_received(bench.now, None, _sync_request(bench, 1)) is None
    bench.do(7, lambda swim, now: swim.set_metadata(now, b"ignored"))
    bench.do(7, lambda swim, now: swim.leave(now))
    assert len(bench.sent) == frames


def _sync_request(bench: Bench, by: int) -> bytes:
    core = bench.machines[by].core
    core.synchronizer.exchange(address(99), core.healer)  # type: ignore[arg-type]
    return core.take_transmits()[-1].data


def test_a_joiner_that_names_itself_like_its_seed_is_turned_away():
    bench = Bench()
    bench.cluster(2)
    second = bench.add("a", 7, epoch=99, seeds=[1])
    bench.run(5)
    assert second.join_status is JoinStatus.NAME_IN_USE
    assert bench.machines[1].join_status is JoinStatus.JOINED


def test_of_two_joiners_with_one_name_that_know_only_each_other_one_stays():
    bench = Bench()
    bench.add("a", 1, epoch=5, seeds=[2])
    bench.add("a", 2, epoch=6, seeds=[1])
    bench.run(40)
    statuses = [swim.join_status for swim in bench.machines.values()]
    assert statuses.count(JoinStatus.NAME_IN_USE) == 1
    assert bench.machines[1].join_status is JoinStatus.NAME_IN_USE


def test_of_two_holders_that_meet_when_a_partition_heals_the_lower_life_stops():
    bench = Bench()
    bench.cluster(2)
    bench.add("y", 11)
    bench.add("b", 12, epoch=50, seeds=[11])
    bench.run(5)
    bench.do(11, lambda swim, now: swim.join(now, [address(1)]))
    bench.run(20)
    assert bench.machines[2].join_status is JoinStatus.NAME_IN_USE
    assert bench.machines[12].join_status is JoinStatus.JOINED
    assert all(swim.member("b").address == address(12) for port, swim in bench.machines.items() if port != 2)
    changes = [e for e in bench.heard(MemberRestarted) if e.member.name == "b"]
    assert 1 <= len(changes) <= 2


def test_a_lower_life_that_writes_is_told_of_the_greater_one():
    bench = Bench()
    bench.cluster(3)
    old = machine("c", 8, now=bench.now, epoch=0, seed=9)
    bench.machines[8] = old
    bench.deliver(1, old.core.pack_datagram([], 1))
    bench.deliver(3, old.core.pack_datagram([], 1))
    assert bench.machines[1].statistics().name_conflicts == 1
    assert bench.machines[1].statistics().stale_answered == 1
    (conflict,) = bench.heard(NameConflict)
    assert (conflict.kept, conflict.refused) == (address(3), address(8))
    bench.run(3)
    assert old.join_status is JoinStatus.NAME_IN_USE


def test_a_greater_life_that_writes_to_its_namesake_stops_it():
    bench = Bench()
    bench.cluster(2)
    bench.add("b", 8, epoch=9)
    tell(bench, 2, Alive("b", "10.0.0.1", 8, 9, bench.machines[8].local.instance, 0, b"", b""), by=8)
    bench.run(3)
    assert bench.machines[2].join_status is JoinStatus.NAME_IN_USE


def test_a_later_life_that_nobody_holds_is_outlived():
    bench = Bench()
    bench.cluster(3)
    tell(bench, 3, Alive("c", "10.0.0.1", 77, 9, b"nobody!!", 0, b"", b""))
    bench.run(3)
    (event,) = bench.heard(Outlived)
    assert (event.previous_epoch, event.epoch) == (1, 10)
    assert bench.machines[1].member("c").epoch == 10


def test_a_later_life_at_the_own_address_or_departed_is_outlived_at_once():
    bench = Bench()
    bench.cluster(3)
    tell(bench, 3, Alive("c", "10.0.0.1", 3, 9, b"nobody!!", 0, b"", b""))
    tell(bench, 3, Dead("c", 20, b"nobody!!", 0, "b"))
    assert [event.epoch for event in bench.heard(Outlived)] == [10, 21]
    tell(bench, 3, Suspect("c", 30, b"nobody!!", 0, "b"))
    assert bench.machines[3].local.epoch == 21


def test_a_life_that_comes_back_after_it_was_outlived_is_alive_after_all():
    bench = Bench()
    bench.cluster(3)
    bench.add("c", 8, epoch=5)
    bench.cut = lambda source, destination: (
        {source, destination} == {3, 8} or ({source, destination} <= {1, 2, 8} and 8 in {source, destination})
    )
    other = bench.machines[8].local
    words = Alive("c", "10.0.0.1", 8, 5, other.instance, 0, b"", b"")
    tell(bench, 3, words)
    bench.run(3)
    assert bench.machines[3].local.epoch == 6
    tell(bench, 3, words._replace(epoch=7))
    assert bench.machines[3].join_status is JoinStatus.NAME_IN_USE


def test_the_last_epoch_cannot_be_outlived():
    bench = Bench()
    bench.cluster(2)
    tell(bench, 2, Left("b", EPOCH_MAX, b"nobody!!", 0), by=1)
    assert bench.machines[2].join_status is JoinStatus.NAME_IN_USE


def test_an_exhausted_incarnation_is_a_new_epoch():
    bench = Bench()
    bench.cluster(2)
    bench.machines[2].core.identity.change("test", incarnation=INCARNATION_MAX - 1)
    tell(bench, 2, Suspect("b", 1, bench.machines[2].local.instance, INCARNATION_MAX, "a"), by=1)
    assert (bench.machines[2].local.epoch, bench.machines[2].local.incarnation) == (2, 0)


def test_a_copy_of_a_running_process_makes_the_first_that_sees_it_another_life():
    bench = Bench()
    bench.cluster(2)
    copy = machine("b", 2, now=bench.now, epoch=1, instance=bench.machines[2].local.instance)
    copy.core.counter = 10_000
    before = bench.machines[2].local.instance
    bench.deliver(2, copy.core.pack_datagram([], 1))
    assert bench.machines[2].local.instance != before
    assert bench.machines[2].local.epoch == 2
    bench.run(5)
    assert bench.machines[1].member("b").epoch == 2


def test_an_address_change_wins_at_once_and_is_one_event():
    bench = Bench()
    bench.cluster(3)
    moved = bench.machines[3]
    bench.machines[9] = bench.machines.pop(3)
    bench.do(9, lambda swim, now: swim.readvertise(now, address(9)))
    took = bench.run(5, until=lambda: all(s.member("c").address == address(9) for s in bench.machines.values()))
    assert took < 1
    bench.run(20)
    assert [e.member.name for e in bench.heard(MemberMoved)] == ["c", "c"]
    assert not bench.heard(MemberDied)
    assert moved.local.epoch == 2
    with pytest.raises(ConfigError):
        moved.readvertise(bench.now, address(0))


# News -----------------------------------------------------------------------------------------------------------


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
    assert bench.machines[1].member("c").state is MemberState.ALIVE


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


# Verify before list ---------------------------------------------------------------------------------------------


def ghost(name: str = "ghost", *, port: int = 77, incarnation: int = 0, instance: bytes = b"nobody!!") -> Alive:
    return Alive(name, "10.0.0.1", port, 1, instance, incarnation, b"", b"")


def test_an_invented_member_is_never_listed():
    bench = Bench()
    bench.cluster(3)
    tell(bench, 1, ghost())
    assert bench.machines[1].statistics().members_unverified == 1
    bench.run(10)
    assert not bench.heard(MemberJoined)
    assert bench.machines[1].statistics().members_unverified == 0
    assert bench.machines[1].statistics().unverified_dropped == 1


def test_a_candidate_at_an_address_where_another_answers_is_dropped_at_once():
    bench = Bench()
    bench.cluster(3)
    tell(bench, 1, ghost(port=3))
    bench.run(0.1)
    assert bench.machines[1].statistics().unverified_dropped == 1


def test_a_candidate_that_another_answers_for_by_exchange_is_dropped():
    bench = Bench()
    bench.cluster(3)
    deliver = bench.deliver
    bench.deliver = lambda port, data, source=0: None if port == 3 else deliver(port, data, source=source)
    tell(bench, 1, ghost(port=3))
    bench.run(0.7)
    assert bench.machines[1].statistics().unverified_dropped == 1


def test_a_candidate_reached_by_exchange_or_relay_alone_is_listed():
    bench = Bench()
    bench.cluster(3)
    bench.add("z", 9)
    words = Alive("z", "10.0.0.1", 9, 1, bench.machines[9].local.instance, 0, b"", b"")
    bench.cut = lambda source, destination: {source, destination} == {1, 9}
    tell(bench, 1, words)
    bench.run(3, until=lambda: "z" in bench.view(1))
    assert bench.machines[1].member("z").reachability.value == "relayed"


def test_a_candidates_newer_words_replace_older_ones_and_a_farewell_ends_it():
    bench = Bench()
    bench.cluster(2)
    verifier = bench.machines[1].core.verifier
    tell(bench, 1, ghost())
    tell(bench, 1, ghost())
    tell(bench, 1, ghost(incarnation=3))
    assert verifier._candidates["ghost"].alive.incarnation == 3
    tell(bench, 1, ghost(incarnation=1), ghost(instance=b"somebody", port=78))
    assert verifier._candidates["ghost"].alive.instance == b"somebody"
    tell(bench, 1, Left("ghost", 1, b"somebody", 0))
    assert "ghost" not in verifier


def test_candidates_are_bounded_and_pinged_a_few_at_a_time():
    bench = Bench()
    bench.cluster(2, unverified_max=50)
    for i in range(60):
        tell(bench, 1, ghost(f"ghost{i}"))
    statistics = bench.machines[1].statistics()
    assert statistics.members_unverified == 50
    assert statistics.dropped_full == 10
    assert sum(c.attempts > 0 for c in bench.machines[1].core.verifier._candidates.values()) == 32
    bench.run(20)
    assert bench.machines[1].statistics().members_unverified == 0


def test_a_full_table_takes_no_more_members_and_forgets_the_departed_first():
    bench = Bench()
    bench.cluster(3, members_max=4)
    bench.add("d", 4, seeds=[1], members_max=4)
    bench.add("e", 5, seeds=[1], members_max=4)
    bench.run(10)
    assert len(bench.machines[1].members()) == 4
    assert bench.machines[1].statistics().dropped_full >= 1
    for port in (4, 5):
        bench.kill(port)
    bench.run(20)
    bench.add("f", 6, seeds=[1], members_max=4)
    bench.run(20)
    assert "f" in bench.view(1)


def test_an_unknown_sender_is_asked_for_its_words_once_in_a_while():
    bench = Bench()
    bench.cluster(2)
    stranger = bench.add("z", 9)
    for _ in range(3):
        bench.deliver(1, stranger.core.pack_datagram([], 1))
    assert bench.machines[1].statistics().introductions == 1
    bench.run(2, until=lambda: bench.all_see("a", "b", "z"))


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


def test_many_strangers_and_refusals_are_remembered_in_bounds():
    from swimcluster.inbox import STRANGERS_MAX

    bench = Bench()
    bench.cluster(2, source_rate_max=0)
    inbox = bench.machines[1].core.inbox
    for i in range(STRANGERS_MAX + 5):
        stranger = machine(f"s{i}", 9, now=bench.now)
        bench.deliver(1, stranger.core.pack_datagram([], 1))
    assert len(inbox._asked) == STRANGERS_MAX


def test_name_checks_are_remembered_in_bounds_and_asked_again_when_old():
    bench = Bench()
    a, *_ = bench.cluster(2)
    joiner = a.core.joiner
    entry = a.core.table.live["b"]
    for i in range(CHECKS_MAX + 3):
        entry.claim = entry.claim._replace(instance=i.to_bytes(8, "big"))
        joiner._holder_verdict(bench.now, entry)
    assert len(joiner._checks) == CHECKS_MAX
    before = a.statistics().name_checks
    joiner._holder_verdict(bench.now, entry)
    joiner._holder_verdict(bench.now + 11 * S, entry)
    assert a.statistics().name_checks == before + 1


def test_a_verdict_needs_an_answer_of_the_holder_itself():
    reply = SyncReply(Verdict.CHECKING, 3)
    assert reply.verdict == 1
    bench = Bench()
    bench.cluster(3)
    bench.freeze(3)
    bench.add("c", 7, epoch=9, seeds=[1])
    bench.run(4)
    assert bench.machines[7].join_status is JoinStatus.JOINED
    bench.thaw(3)
    bench.run(10)
    assert bench.machines[3].join_status is JoinStatus.NAME_IN_USE


def test_seal_and_membership_agree_on_what_a_datagram_is():
    bench = Bench()
    bench.cluster(2)
    core = bench.machines[2].core
    body = b"\x93\x01\x02\x03"
    bench.deliver(1, seal(core.keyring, FrameKind.DATAGRAM, core.identity.instance, 10**6, body))
    assert bench.machines[1].statistics().dropped_malformed == 1
    bench.run(MS / S)


def test_only_relays_that_were_asked_vouch_for_a_candidate_or_a_holder():
    bench = Bench()
    a, b, c = bench.cluster(3)
    bench.cut = lambda source, destination: True
    tell(bench, 1, ghost())
    candidate = a.core.verifier._candidates["ghost"]
    tell(bench, 1, Ack(candidate.sequence), Nack(candidate.sequence))
    assert "ghost" in a.core.verifier
    candidate.replied(bench.now, None) if candidate.sequence is None else candidate.failed(bench.now)
    candidate.stop()
    candidate.replied(bench.now, None)
    entry = a.core.table.live["c"]
    a.core.joiner._holder_verdict(bench.now, entry)
    check = a.core.joiner._checks["c", c.local.instance][0]
    stranger = bench.add("z", 9)
    bench.deliver(1, stranger.core.pack_datagram([encode_message(Ack(check._sequence))], 1))
    assert check.verdict is None
    tell(bench, 1, Nack(check._sequence), Ack(check._sequence), by=2)
    assert check.verdict is True
    assert b.local.state is MemberState.ALIVE


def test_candidates_beyond_those_in_flight_wait_and_may_end_waiting():
    bench = Bench()
    bench.cluster(2)
    for i in range(40):
        tell(bench, 1, ghost(f"ghost{i}"))
    verifier = bench.machines[1].core.verifier
    waiting = [name for name, candidate in verifier._candidates.items() if not candidate.attempts]
    assert len(waiting) == 8
    tell(bench, 1, Left(waiting[0], 1, b"nobody!!", 0))
    assert waiting[0] not in verifier
    assert verifier._in_flight == 32


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
    tell(bench, 2, Alive("b", "10.0.0.1", 2, 1, own.instance, 4, b"forged", b""), by=1)
    assert bench.machines[2].local.incarnation == 5
    assert bench.machines[2].statistics().local_health == 0


def test_a_joiner_that_leaves_while_its_name_is_checked_dials_no_more():
    bench = Bench()
    bench.cluster(3)
    bench.freeze(3)
    bench.add("c", 7, epoch=9, seeds=[1])
    bench.run(0.2)
    bench.do(7, lambda swim, now: swim.leave(now))
    joiner = bench.machines[7].core.joiner
    seed = next(iter(joiner._seeds.values()))
    dialled = len(bench.sent)
    seed.dial(bench.now)
    assert len(bench.sent) == dialled
    assert bench.machines[7].join_status is JoinStatus.LEFT


def test_an_advertised_address_of_another_member_is_told_on_all_sides_and_lists_nobody():
    bench = Bench()
    bench.cluster(2)
    for port in (8, 9):
        wrong = machine("cd"[port - 8], port - 7, now=bench.now, seeds=[1])
        bench.machines[port] = wrong
        bench.flush(port)
    bench.run(30)
    assert bench.views()[:2] == [["a", "b"], ["a", "b"]]
    told = {(at, e.name, e.address, e.holder) for _, at, e in bench.events if isinstance(e, AddressConflict)}
    assert {("c", "c", address(1), "a"), ("d", "d", address(2), "b")} <= told
    assert ("a", "d", address(2), "b") in told
    assert ("b", "c", address(1), "a") in told
    assert not bench.heard(NameConflict)
    assert max(Counter((at, e.name) for _, at, e in bench.events if isinstance(e, AddressConflict)).values()) == 1
    assert all(bench.machines[port].statistics().name_conflicts == 0 for port in (1, 2))


def test_an_address_conflict_is_told_again_after_a_minute_and_what_was_told_is_bounded():
    bench = Bench()
    swim = bench.add("a", 1)
    conflicts = AddressConflicts(swim.core)
    for number in range(TOLD_MAX + 1):
        conflicts.tell(S, f"m{number}", address(9), "b")
    conflicts.tell(30 * S, "m1", address(9), "b")
    assert len(swim.events()) == TOLD_MAX + 1
    conflicts.tell(30 * S, "m0", address(9), "b")
    conflicts.tell(62 * S, "m2", address(9), "b")
    assert [event.name for event in swim.events()] == ["m0", "m2"]
