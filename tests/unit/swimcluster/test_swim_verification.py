"""Verify before list: candidates, name checks, addresses where another answers (rules P16, P17, P6)."""

from __future__ import annotations

from collections import Counter

from swimcluster.address_conflicts import TOLD_MAX, AddressConflicts
from swimcluster.codec import encode_message
from swimcluster.events import (
    AddressConflict,
    MemberJoined,
    NameConflict,
)
from swimcluster.joining import CHECKS_MAX
from swimcluster.mac import FrameKind, seal
from swimcluster.member import MemberState
from swimcluster.messages import Ack, Alive, Left, Nack, SyncReply, Verdict
from swimcluster.transmits import JoinStatus
from tests.fakes.swim_bench import MS, Bench, S, address, machine, tell


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


def test_many_strangers_and_refusals_are_remembered_in_bounds():
    from swimcluster.first_hand import STRANGERS_MAX

    bench = Bench()
    bench.cluster(2, source_rate_max=0)
    first_hand = bench.machines[1].core.first_hand
    for i in range(STRANGERS_MAX + 5):
        stranger = machine(f"s{i}", 9, now=bench.now)
        bench.deliver(1, stranger.core.pack_datagram([], 1))
    assert len(first_hand._asked) == STRANGERS_MAX


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
