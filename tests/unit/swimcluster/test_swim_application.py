"""Leaving, application messages, vitals, events and the machine as an object (P19, P21, P24 to P27, P33)."""

from __future__ import annotations

import pickle

import pytest

from swimcluster.codec import encode_message
from swimcluster.errors import ExchangeError, PayloadTooLargeError
from swimcluster.events import (
    BroadcastReceived,
    EventsLost,
    LeaveFinished,
    MemberDied,
    MemberLeft,
    ReplyReceived,
    RequestFailed,
    RequestReceived,
    Snapshot,
    UserMessage,
    VitalsChanged,
)
from swimcluster.member import MemberState
from swimcluster.messages import Broadcast, Introduce, Request
from swimcluster.transmits import Datagram, Exchange, JoinStatus, PendingReply
from swimcluster.user import REQUESTS_MAX
from tests.fakes.swim_bench import KEY, MS, Bench, S, address, machine

OTHER_KEY = b"another sixteen bytes"


# Leaving --------------------------------------------------------------------------------------------------------


def test_leaving_is_told_to_all_and_reported_as_leaving():
    bench = Bench()
    bench.cluster(4)
    bench.do(4, lambda swim, now: swim.leave(now))
    bench.do(4, lambda swim, now: swim.leave(now))
    assert bench.machines[4].join_status is JoinStatus.LEAVING
    assert bench.machines[4].local.state is MemberState.LEFT
    bench.run(5, until=lambda: bench.machines[4].leave_progress.is_done)
    progress = bench.machines[4].leave_progress
    assert (progress.told, progress.members) == (3, 3)
    assert bench.heard(LeaveFinished) == [LeaveFinished(3, 3)]
    assert bench.machines[4].join_status is JoinStatus.LEFT
    assert bench.machines[4].next_deadline() is None
    bench.run(30)
    assert len(bench.heard(MemberLeft)) == 3
    assert not bench.heard(MemberDied)
    assert bench.machines[1].member("d").state is MemberState.LEFT


def test_leaving_alone_ends_at_once():
    bench = Bench()
    bench.add("a", 1)
    bench.do(1, lambda swim, now: swim.leave(now))
    assert bench.machines[1].leave_progress.is_done


def test_leaving_ends_when_nobody_answers_and_says_how_many_heard():
    bench = Bench()
    bench.cluster(3)
    bench.kill(1)
    bench.kill(2)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(15, until=lambda: bench.machines[3].leave_progress.is_done)
    assert bench.machines[3].leave_progress.members == 2


def test_a_leaver_still_answers_and_does_not_refute():
    bench = Bench()
    bench.cluster(3)
    bench.do(3, lambda swim, now: swim.leave(now))
    incarnation = bench.machines[3].local.incarnation
    bench.run(0.5)
    assert bench.machines[3].local.incarnation == incarnation
    assert bench.machines[1].member("c").state is MemberState.LEFT


def test_a_name_that_left_may_come_back():
    bench = Bench()
    bench.cluster(3)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(3)
    bench.kill(3)
    bench.add("c", 8, epoch=0, seeds=[1])
    bench.run(5, until=lambda: bench.all_see("a", "b", "c"))


def test_leaving_works_without_a_gossip_tick():
    bench = Bench()
    bench.cluster(3, gossip_interval_s=0)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(5, until=lambda: bench.machines[3].leave_progress.is_done)


def test_departed_members_are_remembered_and_then_forgotten():
    bench = Bench()
    bench.cluster(3, reconnect_for_s=100)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(3)
    bench.kill(3)
    bench.kill(2)
    bench.run(20)
    assert [(m.name, m.state.name) for m in bench.machines[1].departed()] == [("b", "DEAD"), ("c", "LEFT")]
    bench.run(240)
    assert bench.machines[1].departed() == ()


# Vitals ---------------------------------------------------------------------------------------------------------


def test_vitals_ride_on_every_packet_and_come_from_the_owner():
    bench = Bench()
    bench.cluster(3)
    bench.do(1, lambda swim, now: swim.set_vitals(now, b"cpu 5"))
    took = bench.run(1, until=lambda: all(s.member("a").vitals == b"cpu 5" for s in bench.machines.values()))
    assert took <= 0.21
    assert {name for _, name, e in bench.events if isinstance(e, VitalsChanged)} == {"b", "c"}
    with pytest.raises(PayloadTooLargeError):
        bench.machines[1].set_vitals(bench.now, b"x" * 129)


def test_at_most_one_value_of_vitals_per_probe_interval_and_the_newest():
    bench = Bench()
    bench.cluster(2)
    for i in range(10):
        bench.do(1, lambda swim, now, i=i: swim.set_vitals(now, b"%d" % i))
        bench.run(0.05)
    assert bench.machines[1].core.identity.vitals_counter == 1
    bench.run(1.5)
    assert bench.machines[1].core.identity.vitals_counter == 2
    assert bench.machines[2].member("a").vitals == b"9"


def test_vitals_are_published_without_a_gossip_tick_too():
    bench = Bench()
    bench.cluster(2, gossip_interval_s=0)
    bench.do(1, lambda swim, now: swim.set_vitals(now, b"1"))
    bench.do(1, lambda swim, now: swim.set_vitals(now, b"2"))
    bench.run(3)
    assert bench.machines[2].member("a").vitals == b"2"
    assert bench.machines[2].member("a").vitals_age_s < 1.6


def test_the_age_of_vitals_follows_its_formula():
    bench = Bench()
    bench.cluster(9, probe_interval_s=60, probe_timeout_s=0.5)
    bench.do(1, lambda swim, now: swim.set_vitals(now, b"x"))
    ages = []
    for _ in range(200):
        bench.run(0.1)
        ages += [swim.member("a").vitals_age_s for port, swim in bench.machines.items() if port != 1]
    known = [age for age in ages if age is not None]
    assert max(known) <= 2 * 3 * 0.2 + 0.01  # Two rounds of ceil(8 / 3) ticks.
    assert sum(known) / len(known) < 0.4


# Application messages -------------------------------------------------------------------------------------------


def test_a_datagram_payload_arrives_once():
    bench = Bench()
    bench.cluster(2)
    bench.do(1, lambda swim, now: swim.send(now, "b", b"hello"))
    data = bench.sent[-1][2].data
    bench.run(0.1)
    bench.deliver(2, data)
    assert bench.heard(UserMessage) == [UserMessage("a", b"hello")]
    assert bench.machines[2].statistics().dropped_replay == 1


def test_a_payload_of_the_limit_fits_with_the_longest_own_name():
    bench = Bench()
    swim = bench.add("n" * 64, 1)
    bench.add("b", 2, seeds=[1])
    bench.run(3)
    limit = swim.core.config.user_datagram_bytes_max
    bench.do(1, lambda swim, now: swim.set_vitals(now, b"v" * 128))
    bench.do(1, lambda swim, now: swim.send(now, "b", b"x" * limit))
    with pytest.raises(PayloadTooLargeError):
        swim.send(bench.now, "b", b"x" * (limit + 1))
    with pytest.raises(ExchangeError, match="no live member"):
        swim.send(bench.now, "z", b"")
    bench.run(0.1)
    assert len(bench.heard(UserMessage)[0].payload) == limit


def test_a_request_gets_its_reply():
    bench = Bench()
    bench.cluster(2)
    number = bench.do(1, lambda swim, now: swim.request(now, "b", b"question"))
    bench.run(1)
    assert bench.heard(RequestReceived)[0].payload == b"question"
    assert bench.heard(ReplyReceived) == [ReplyReceived(number, b"re: question")]


def test_a_request_without_a_reply_fails_once():
    bench = Bench()
    bench.cluster(2)
    bench.kill(2)
    number = bench.do(1, lambda swim, now: swim.request(now, "b", b"question"))
    bench.run(1)
    bench.machines[1].exchange_failed(bench.now, number)
    bench.machines[1].exchange_replied(bench.now, number, b"late")
    bench.flush(1)
    assert [event.request_id for event in bench.heard(RequestFailed)] == [number]
    with pytest.raises(PayloadTooLargeError):
        bench.machines[1].request(bench.now, "b", b"x" * 65_537)


def test_a_reply_that_is_none_fails_the_request():
    bench = Bench()
    bench.cluster(2)
    swim = bench.machines[1]
    number = swim.request(bench.now, "b", b"question")
    pending = swim.core.exchanges[number]
    other = bench.machines[2].core
    swim.exchange_replied(bench.now, number, other.seal_reply(pending.binding, [encode_message(Introduce())]))
    assert swim.events() == [RequestFailed(number, "the member sent something else than a reply")]


def test_a_request_can_be_answered_once_and_in_time_only():
    bench = Bench()
    bench.cluster(2)
    asker, answerer = bench.machines[1], bench.machines[2]

    def ask() -> PendingReply:
        asker.request(bench.now, "b", b"q")
        pending = answerer.exchange_received(bench.now, None, asker.transmits()[-1].data)
        assert isinstance(pending, PendingReply)
        return pending

    first, second = ask(), ask()
    with pytest.raises(PayloadTooLargeError):
        answerer.respond(bench.now, first.request_id, b"x" * 65_537)
    answerer.respond(bench.now, first.request_id, b"yes")
    for late in (first.request_id, second.request_id):
        with pytest.raises(ExchangeError):
            answerer.respond(bench.now + 11 * S, late, b"yes")


def test_requests_that_wait_for_the_application_are_bounded():
    bench = Bench()
    bench.cluster(2, source_rate_max=0)
    asker, answerer = bench.machines[1], bench.machines[2]
    answers = []
    for _ in range(REQUESTS_MAX + 1):
        asker.request(bench.now, "b", b"q")
        answers.append(answerer.exchange_received(bench.now, None, asker.transmits()[-1].data))
    assert answers[-1] is None
    assert all(answers[:-1])
    core = asker.core
    core.exchange(address(2), [encode_message(Request(b"x" * 70_000))], core.healer, 1)  # type: ignore[arg-type]
    assert answerer.exchange_received(bench.now + 20 * S, None, asker.transmits()[-1].data) is None


def test_a_broadcast_reaches_every_other_member_once():
    bench = Bench()
    bench.cluster(6)
    bench.do(1, lambda swim, now: swim.broadcast(now, b"to all"))
    bench.run(3)
    heard = [name for _, name, event in bench.events if event == BroadcastReceived("a", b"to all")]
    assert sorted(heard) == list("bcdef")
    with pytest.raises(PayloadTooLargeError):
        bench.machines[1].broadcast(bench.now, b"x" * 257)


def test_broadcasts_waiting_are_bounded_and_the_loss_is_counted():
    bench = Bench()
    bench.cluster(2, broadcasts_max=4)
    for i in range(6):
        bench.machines[1].broadcast(bench.now, b"%d" % i)
    assert bench.machines[1].statistics().broadcasts_queued == 4
    assert bench.machines[1].statistics().user_broadcasts_dropped == 2


def test_broadcasts_are_not_starved_while_members_change():
    bench = Bench()
    bench.cluster(3)
    for i in range(300):
        bench.machines[1].core.publish(f"x{i}", encode_message(Broadcast("x", b"i" * 8, i, b"n" * 100)))
    bench.do(1, lambda swim, now: swim.broadcast(now, b"b" * 256))
    bench.run(1, until=lambda: len([e for e in bench.heard(BroadcastReceived) if e.origin == "a"]) == 2)


# Events ---------------------------------------------------------------------------------------------------------


def test_events_nobody_takes_are_bounded_and_the_loss_is_told_with_a_snapshot():
    bench = Bench()
    bench.cluster(2, events_max=16)
    swim = bench.machines[1]
    for i in range(20):
        bench.machines[2].send(bench.now, "a", b"%d" % i)
    for transmit in bench.machines[2].transmits():
        swim.receive_datagram(bench.now, None, transmit.data)
    events = swim.events()
    assert events[0] == EventsLost(4)
    assert isinstance(events[-1], Snapshot)
    assert [m.name for m in events[-1].members] == ["a", "b"]
    assert events[1] == UserMessage("b", b"4")
    assert swim.statistics().events_lost == 4
    assert swim.events() == []


# The machine as an object ---------------------------------------------------------------------------------------


def test_a_machine_can_be_stored_without_its_keys_and_goes_on_alike():
    bench = Bench()
    a, *_ = bench.cluster(3)
    keyring, a.keyring = a.keyring, None  # type: ignore[assignment]
    stored = pickle.dumps(a)
    a.keyring = keyring
    assert KEY not in stored
    copy = pickle.loads(stored)
    copy.keyring = keyring
    for swim in (a, copy):
        swim.advance(bench.now + 5 * S)
    assert copy.transmits() == a.transmits()
    assert copy.events() == a.events()
    assert copy.next_deadline() == a.next_deadline()


def test_a_watcher_sees_each_change_of_the_table():
    bench = Bench()
    seen = []
    a = bench.add("a", 1)
    a.on_transition = seen.append
    assert a.on_transition is not None
    bench.add("b", 2, seeds=[1])
    bench.run(2)
    bench.do(1, lambda swim, now: swim.set_metadata(now, b"x"))
    bench.kill(2)
    bench.run(15)
    told = [(t.name, t.before and t.before.state.name, t.after and t.after.state.name, t.cause) for t in seen]
    assert ("b", None, "ALIVE", "heard of") in told
    assert ("b", None, "ALIVE", "verified") in told
    assert ("b", "ALIVE", "SUSPECT", "probe failed") in told
    assert ("b", "SUSPECT", "DEAD", "suspicion ran out") in told
    assert ("a", "ALIVE", "ALIVE", "metadata") in told
    before = len(seen)
    a.core.table.forget(a.core.table.gone["b"], "test")
    assert seen[before].after is None
    a.on_transition = None


def test_what_is_pending_is_bounded():
    from swimcluster.core import WAITERS_MAX
    from swimcluster.relay import RELAYS_MAX

    bench = Bench()
    a, *_ = bench.cluster(2, source_rate_max=0)
    for _ in range(WAITERS_MAX + 10):
        a.core.expect(a.core.relays)  # type: ignore[arg-type]
    assert len(a.core.waiters) == WAITERS_MAX
    from swimcluster.messages import PingReq

    data = encode_message(PingReq(1, "z", b"nobody!!", "10.0.0.1", 99))
    for _ in range(RELAYS_MAX + 5):
        bench.machines[2].core.send(address(1), data, fill=False)
    for transmit in bench.machines[2].transmits():
        assert isinstance(transmit, Datagram)
        a.receive_datagram(bench.now, None, transmit.data)
    assert a.statistics().dropped_full == 5


def test_state_larger_than_an_exchange_is_cut_to_a_part():
    bench = Bench()
    a, *_ = bench.cluster(3)
    messages = [b"x" * 300] * 1000
    small = a.core.config.__class__.lan(
        name="a", advertise="h:1", keys=[KEY], exchange_bytes_max=65_536, request_bytes_max=100
    )
    a.core.config = small
    assert sum(map(len, a.core.synchronizer._within_limit(messages))) <= 65_536
    assert len(a.core.synchronizer._within_limit(messages[:5])) == 5


def test_push_pull_alone_heals_what_gossip_missed():
    bench = Bench()
    bench.cluster(3, gossip_interval_s=0, push_pull_interval_s=2)
    bench.do(1, lambda swim, now: swim.core.identity.change("test", incarnation=1, metadata=b"by state"))
    bench.run(10, until=lambda: all(s.member("a").metadata == b"by state" for s in bench.machines.values()))
    assert any(isinstance(t, Exchange) for _, _, t in bench.sent)


def test_halves_apart_longer_than_tombstones_find_each_other_without_seeds():
    bench = Bench()
    bench.cluster(6)
    bench.kill(1)
    bench.cut = lambda source, destination: (source <= 3) != (destination <= 3)
    bench.run(200)
    assert bench.views() == [["b", "c"], ["b", "c"], ["d", "e", "f"], ["d", "e", "f"], ["d", "e", "f"]]
    bench.cut = lambda source, destination: False
    took = bench.run(30, until=lambda: bench.all_see(*"bcdef"))
    assert took < 20


def test_a_node_that_lost_all_dials_its_seeds_at_once():
    bench = Bench()
    bench.cluster(2)
    bench.cut = lambda source, destination: True
    bench.run(30)
    assert bench.views() == [["a"], ["b"]]
    bench.cut = lambda source, destination: False
    assert bench.run(20, until=lambda: bench.all_see("a", "b")) < 16
    assert bench.latency == MS


def test_a_leave_that_takes_long_lets_every_other_duty_rest():
    bench = Bench()
    bench.cluster(3, reconnect_interval_s=1, tombstone_s=1, seed_interval_s=1, push_pull_interval_s=1)
    instance = bench.machines[3].local.instance
    from swimcluster.messages import Alive

    words = Alive("c", "10.0.0.1", 77, 9, b"nobody!!", 0, b"", b"")
    bench.deliver(3, bench.machines[2].core.pack_datagram([encode_message(words)], 1))
    for port in (1, 2):
        bench.freeze(port)
    probes = bench.machines[3].statistics().probes
    bench.do(3, lambda swim, now: swim.set_vitals(now, b"so that the gossip tick does not rest"))
    bench.do(3, lambda swim, now: swim.leave(now))
    from swimcluster.messages import Suspect

    accusation = encode_message(Suspect("c", 1, instance, 0, "b"))
    bench.deliver(3, bench.machines[2].core.pack_datagram([accusation], 1))
    copy = machine("c", 3, now=bench.now, instance=instance)
    copy.core.counter = 10_000
    bench.deliver(3, copy.core.pack_datagram([], 1))
    bench.do(3, lambda swim, now: swim.readvertise(now, address(33)))
    bench.run(9)
    assert bench.machines[3].local.incarnation == 0
    assert bench.machines[3].local.address == address(3)
    assert bench.machines[3].statistics().probes == probes
    assert not bench.machines[3].leave_progress.is_done
    bench.run(5, until=lambda: bench.machines[3].leave_progress.is_done)


def test_a_leave_while_the_own_name_is_in_doubt_ends_the_doubt():
    from swimcluster.messages import Alive

    bench = Bench()
    bench.cluster(3)
    words = Alive("c", "10.0.0.1", 77, 9, b"nobody!!", 0, b"", b"")
    bench.deliver(3, bench.machines[2].core.pack_datagram([encode_message(words)], 1))
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(3)
    assert bench.machines[3].join_status is JoinStatus.LEFT
    assert bench.machines[3].local.epoch == 1


def test_a_join_that_is_answered_after_leaving_changes_nothing():
    bench = Bench()
    bench.cluster(2)
    bench.add("c", 3, seeds=[1])
    bench.run(0.0015)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(5)
    assert bench.machines[3].join_status is JoinStatus.LEFT


def test_advertising_the_same_address_again_changes_nothing():
    bench = Bench()
    a, *_ = bench.cluster(2)
    a.readvertise(bench.now, address(1))
    assert a.local.epoch == 1
    assert a.core.config.with_advertise(address(5)).advertise == address(5)


def test_vitals_said_again_are_no_change_and_parts_can_be_turned_off():
    from swimcluster.messages import PingReq

    bench = Bench()
    a, b = bench.cluster(2, nacks=False, reconnect_interval_s=0)
    for _ in range(2):
        bench.do(2, lambda swim, now: swim.set_vitals(now, b"same"))
        bench.run(1.5)
    assert len(bench.heard(VitalsChanged, at="a")) == 1
    assert b.core.identity.vitals_counter == 2
    request = encode_message(PingReq(7, "z", b"nobody!!", "10.0.0.1", 99))
    bench.deliver(1, b.core.pack_datagram([request], 1))
    bench.kill(2)
    bench.run(30)
    assert [m.name for m in a.departed()] == ["b"]
    assert not [t for at, port, t in bench.sent if isinstance(t, Exchange) and at > bench.now - 10 * S]
