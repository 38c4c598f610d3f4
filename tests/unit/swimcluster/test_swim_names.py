"""Names, lives and joining (P1 to P9, P16, P22)."""

from __future__ import annotations

import random

import pytest

from swimcluster.address import Address
from swimcluster.codec import EPOCH_MAX, INCARNATION_MAX, encode_message
from swimcluster.config import Config
from swimcluster.errors import ConfigError, PayloadTooLargeError, PayloadTypeError
from swimcluster.events import (
    JoinAttemptFailed,
    Joined,
    MemberDied,
    MemberMoved,
    MemberRestarted,
    NameConflict,
    NameTaken,
    Outlived,
    PeerRefused,
)
from swimcluster.joining import SEEDS_MAX
from swimcluster.messages import Alive, Dead, Left, Suspect, Sync
from swimcluster.swim import Swim
from swimcluster.transmits import Exchange, JoinStatus
from tests.fakes.swim_bench import KEY, MS, Bench, S, address, machine, tell

HERE = {"now": 0, "epoch": 1, "instance": b"instance", "rng": random.Random(0)}


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
    with pytest.raises(PayloadTypeError, match="nothing was started"):
        Swim(Config.lan(name="a", advertise="h:1", keys=[KEY]), **HERE, metadata="role=web")


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
    assert failed[-1].refused == ()
    bench.add("a", 1)
    bench.run(20, until=lambda: bench.all_see("a", "b"))
    assert [event.seed for event in bench.heard(Joined)] == [address(1)]


def test_a_seed_whose_carrier_met_no_member_has_refused_until_it_is_dialled_again():
    bench = Bench()
    b = machine("b", 2, now=bench.now, seeds=[1])

    def dialled(refusal: str) -> tuple[Address, ...]:
        while not (exchanges := [item for item in b.transmits() if isinstance(item, Exchange)]):
            bench.now = b.next_deadline() or 0
            b.advance(bench.now)
        b.events()
        b.exchange_failed(bench.now, exchanges[0].id, "", refusal)
        *told, failed = b.events()
        assert told == ([PeerRefused(address(1), refusal)] if refusal == "no member" else [])
        assert isinstance(failed, JoinAttemptFailed)
        return failed.refused

    assert dialled("no member") == (address(1),)
    assert dialled("") == ()
    assert dialled("no member, told again too soon") == (address(1),)


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


def test_a_later_life_at_the_own_address_or_departed_is_outlived_within_a_round_trip():
    bench = Bench()
    bench.cluster(3)
    tell(bench, 3, Alive("c", "10.0.0.1", 3, 9, b"nobody!!", 0, b"", b""))
    bench.run(0.01)
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


def test_own_words_after_the_last_incarnation_begin_a_new_epoch():
    bench = Bench()
    bench.cluster(2)
    bench.machines[2].core.identity.change("test", incarnation=INCARNATION_MAX)
    bench.do(2, lambda swim, now: swim.set_metadata(now, b"more"))
    assert (bench.machines[2].local.epoch, bench.machines[2].local.incarnation) == (2, 0)
    bench.run(2, until=lambda: bench.machines[1].member("b").metadata == b"more")


def test_no_epoch_after_the_last_is_ever_told():
    swim = machine("a", 1, epoch=EPOCH_MAX)
    with pytest.raises(ConfigError, match="used up"):
        swim.readvertise(0, address(9))
    assert swim.local.address == address(1)
    swim.core.defence.heard_clone(0)
    assert swim.local.epoch == EPOCH_MAX
    assert swim.join_status is JoinStatus.NAME_IN_USE


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
