"""Leaving, application messages, vitals, events and the machine as an object (P19, P21, P24 to P27, P33)."""

from __future__ import annotations

import pytest

from swimcluster.codec import EPOCH_MAX, encode_message
from swimcluster.errors import ExchangeError, PayloadTooLargeError, PayloadTypeError
from swimcluster.events import (
    BroadcastReceived,
    EventsLost,
    JoinAttemptFailed,
    NameTaken,
    ReplyReceived,
    RequestFailed,
    RequestReceived,
    Snapshot,
    UserMessage,
    VitalsChanged,
)
from swimcluster.messages import Broadcast, Introduce, Left, Request, Response
from swimcluster.push_pull import StateExchange
from swimcluster.self_defence import STOPPED
from swimcluster.swim import Swim
from swimcluster.transmits import JoinStatus, PendingReply
from swimcluster.user import NO_REPLY, REQUESTS_MAX
from tests.fakes.swim_bench import Bench, S, address, tell

OTHER_KEY = b"another sixteen bytes"


def test_vitals_ride_on_every_packet_and_come_from_the_owner():
    bench = Bench()
    bench.cluster(3)
    bench.do(1, lambda swim, now: swim.set_vitals(now, b"cpu 5"))
    took = bench.run(1, until=lambda: all(s.member("a").vitals == b"cpu 5" for s in bench.machines.values()))
    assert took <= 0.21
    assert {name for _, name, e in bench.events if isinstance(e, VitalsChanged)} == {"b", "c"}
    with pytest.raises(PayloadTooLargeError):
        bench.machines[1].set_vitals(bench.now, b"x" * 129)


@pytest.mark.parametrize(
    "value",
    ["text", None, 5, bytearray(b"mutable"), memoryview(b"view"), [b"list"]],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize(
    ("what", "call", "effect"),
    [
        ("metadata", lambda swim, now, value: swim.set_metadata(now, value), "nothing was changed"),
        ("vitals", lambda swim, now, value: swim.set_vitals(now, value), "nothing was changed"),
        ("a message", lambda swim, now, value: swim.send(now, "b", value), "nothing was sent"),
        ("a request", lambda swim, now, value: swim.request(now, "b", value), "nothing was sent"),
        ("a broadcast", lambda swim, now, value: swim.broadcast(now, value), "nothing was sent"),
        ("a reply", lambda swim, now, value: swim.respond(now, 1, value), "nothing was sent"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_is_not_bytes_is_refused_and_costs_nothing(what, call, effect, value):
    bench = Bench()
    bench.cluster(2)
    before = bench.machines[1].local
    with pytest.raises(PayloadTypeError, match=f"{what} must be bytes, not {type(value).__name__}; {effect}"):
        bench.do(1, lambda swim, now: call(swim, now, value))
    assert not bench.sent
    bench.run(30)
    assert bench.machines[1].local == before
    assert bench.all_see("a", "b")
    assert [swim.statistics().dropped_malformed for swim in bench.machines.values()] == [0, 0]


def _standing(bench: Bench, status: JoinStatus) -> Swim:
    """Return member a in this status, with nothing left to send."""
    a, _ = bench.cluster(2)
    if status is JoinStatus.NAME_IN_USE:
        tell(bench, 1, Left("a", EPOCH_MAX, b"nobody!!", 0))
    else:
        bench.do(1, lambda swim, now: swim.leave(now))
    if status is JoinStatus.LEFT:
        bench.run(5, until=lambda: a.leave_progress.is_done)
    assert a.join_status is status
    assert a.transmits() == []
    return a


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (JoinStatus.LEAVING, "this member is leaving"),
        (JoinStatus.LEFT, "this member has left"),
        (JoinStatus.NAME_IN_USE, "a live process answers under its name"),
    ],
    ids=lambda part: part.name if isinstance(part, JoinStatus) else "",
)
def test_who_takes_no_part_any_more_is_told_that_nothing_goes_out(status, why):
    bench = Bench()
    a = _standing(bench, status)
    now, local, queued = bench.now, a.local, a.statistics().broadcasts_queued
    for call in (a.send, a.request):
        with pytest.raises(ExchangeError, match=f"{why}.*; nothing was sent"):
            call(now, "b", b"payload")
        with pytest.raises(PayloadTypeError):
            call(now, "b", "text")
    assert a.set_metadata(now, b"new") is False
    assert a.set_vitals(now, b"new") is False
    assert a.readvertise(now, address(7)) is False
    assert a.broadcast(now, b"new") is False
    assert a.local == local
    assert a.statistics().broadcasts_queued == queued
    assert a.transmits() == []
    bench.run(5)
    assert not bench.heard(BroadcastReceived)
    assert bench.machines[2].member("a").metadata == b"of a"


def test_who_takes_part_is_told_that_it_goes_out():
    bench = Bench()
    a, _ = bench.cluster(2)
    for _ in range(2):  # The second time it says nothing new, and the others have it.
        assert a.set_metadata(bench.now, b"new") is True
        assert a.set_vitals(bench.now, b"new") is True
        assert a.readvertise(bench.now, address(1)) is True
        assert a.broadcast(bench.now, b"new") is True


@pytest.mark.parametrize("call", ["send", "request"])
def test_a_name_that_is_no_other_members_is_refused_with_what_it_is(call):
    bench = Bench()
    a, b = bench.cluster(2)
    for name, error, why in (
        (b.local, PayloadTypeError, "must be text, not Member"),
        (b"b", PayloadTypeError, "must be text, not bytes"),
        ("a", ExchangeError, "is this member itself"),
        ("z", ExchangeError, "no live member is called 'z'"),
    ):
        with pytest.raises(error, match=f"{why}.*; nothing was sent"):
            getattr(a, call)(bench.now, name, b"payload")
    assert a.transmits() == []
    assert a.core.exchanges == {}


def test_over_its_limit_the_message_says_what_became_of_it():
    bench = Bench()
    a, _ = bench.cluster(2)
    for call, effect in (
        (lambda data: a.set_metadata(bench.now, data), "nothing was changed"),
        (lambda data: a.set_vitals(bench.now, data), "nothing was changed"),
        (lambda data: a.broadcast(bench.now, data), "nothing was sent"),
    ):
        with pytest.raises(PayloadTooLargeError, match=effect):
            call(b"x" * 5000)


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


def test_a_request_that_was_never_sent_fails_as_that_with_the_drivers_reason():
    bench = Bench()
    a, _ = bench.cluster(2)
    number, other = a.request(bench.now, "b", b"question"), a.request(bench.now, "b", b"question")
    a.exchange_failed(bench.now, number, "64 were under way")
    a.exchange_failed(bench.now, other)
    a.exchange_failed(bench.now, number, "again")
    assert a.events() == [
        RequestFailed(number, "64 were under way; nothing was sent", is_unsent=True),
        RequestFailed(other, NO_REPLY),
    ]
    a.core.synchronizer.exchange(address(2), StateExchange(a.core))
    a.exchange_failed(bench.now, other + 1, "64 were under way")
    assert a.events() == []


def test_a_member_whose_name_is_taken_ends_every_request_and_join_of_its_program_once():
    bench = Bench()
    bench.cluster(3)
    for port in (2, 9):
        bench.freeze(port)  # Whoever is asked there keeps the asker waiting.
    numbers = [bench.do(1, lambda swim, now: swim.request(now, "b", b"question")) for _ in range(2)]
    bench.do(1, lambda swim, now: swim.join(now, [address(9)]))
    bench.run(0.1)
    assert not bench.heard(RequestFailed)
    failed = bench.machines[1].statistics().exchanges_failed
    tell(bench, 1, Left("a", EPOCH_MAX, b"nobody!!", 0), by=3)
    told = [event for _, name, event in bench.events if name == "a"][-4:]
    assert told[:2] == [RequestFailed(number, STOPPED) for number in numbers]
    assert isinstance(told[2], JoinAttemptFailed)
    assert (told[2].seeds, told[2].is_explicit) == ((address(9),), True)
    assert isinstance(told[3], NameTaken)
    assert bench.machines[1].statistics().exchanges_failed == failed + 2
    assert bench.machines[1].statistics().exchanges_pending == 0
    bench.run(15)
    assert [event.request_id for event in bench.heard(RequestFailed)] == numbers
    assert len([event for event in bench.heard(JoinAttemptFailed, at="a") if event.is_explicit]) == 1


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_request_under_way_has_its_outcome_also_after_its_member_has_left(is_answered):
    bench = Bench()
    a, b, _ = bench.cluster(3)
    number = a.request(bench.now, "b", b"question")
    binding = a.core.exchanges[number].binding
    assert a.transmits()  # The driver has it, and it takes its time.
    bench.do(1, lambda swim, now: swim.leave(now))
    bench.run(5, until=lambda: a.leave_progress.is_done)
    assert not bench.heard(RequestFailed)
    if is_answered:
        a.exchange_replied(bench.now, number, b.core.seal_reply(binding, [encode_message(Response(b"late"))]))
        assert a.events() == [ReplyReceived(number, b"late")]
    else:
        a.exchange_failed(bench.now, number)
        assert a.events() == [RequestFailed(number, NO_REPLY)]


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


def test_a_recorded_request_sent_back_to_its_author_is_not_handed_to_its_program():
    bench = Bench()
    a, _ = bench.cluster(2)
    bench.do(1, lambda swim, now: swim.request(now, "b", b"restart"))
    recorded = bench.sent[-1][2].data
    before = a.statistics().dropped_own
    for _ in range(3):
        assert a.exchange_received(bench.now, address(99), recorded) is None
    assert not [event for event in a.events() if isinstance(event, RequestReceived)]
    assert a.statistics().dropped_own >= before + 3
