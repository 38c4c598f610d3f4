"""Failure detection: probes, relays, suspicion, refutation, self-doubt (P10 to P15, P30, P31)."""

from __future__ import annotations

import itertools

import pytest

from swimcluster.codec import Decoder, encode_message
from swimcluster.config import Config
from swimcluster.events import (
    MemberAlive,
    MemberDied,
    MemberSuspected,
    ReachabilityChanged,
)
from swimcluster.keyring import Keyring
from swimcluster.mac import FrameKind, open_frame
from swimcluster.member import MemberState, Reachability
from swimcluster.messages import Ack, Message, Nack, NotMe, Ping, PingReq, Suspect
from swimcluster.transmits import Datagram, Exchange
from tests.fakes.swim_bench import KEY, MS, Bench, S, address

ALIVE, SUSPECT = MemberState.ALIVE, MemberState.SUSPECT


def opened(data: bytes) -> tuple[Message, ...]:
    """Return the messages of a datagram of the bench's cluster."""
    frame = open_frame(Keyring("default", (KEY,)), FrameKind.DATAGRAM, data)
    return Decoder(Config.lan(name="x", keys=[KEY])).decode(frame.instance, frame.body).messages


def sent_messages(bench: Bench, port: int) -> list[tuple[int, Message]]:
    return [
        (transmit.destination.port, message)
        for _, source, transmit in bench.sent
        if source == port and isinstance(transmit, Datagram)
        for message in opened(transmit.data)
    ]


@pytest.mark.parametrize(("size", "worst_s"), [(2, 6.0), (3, 8.0), (5, 12.0)])
def test_a_crash_is_dead_everywhere_within_the_small_n_table(size, worst_s):
    for seed in range(8):
        bench = Bench(seed=seed)
        bench.cluster(size)
        bench.run(bench.rng.random() * 2)
        bench.kill(size)
        survivors = sorted(swim.local.name for swim in bench.machines.values())
        took = bench.run(worst_s + 0.3, until=lambda: bench.views() == [survivors] * len(survivors))  # noqa: B023
        assert took >= 4.0
        assert len(bench.heard(MemberDied)) == size - 1


def test_a_crash_at_n_2_takes_probe_interval_and_minimum_suspicion():
    bench = Bench()
    bench.cluster(2)
    bench.kill(2)
    suspected = bench.run(2.1, until=lambda: bench.view(1).get("b") is SUSPECT)
    died = bench.run(5, until=lambda: "b" not in bench.view(1))
    assert suspected > 1.0
    assert abs(died - 4.0) < 0.01


def test_a_direct_ack_measures_the_round_trip_and_calls_the_path_direct():
    bench = Bench(latency=20 * MS)
    a, *_ = bench.cluster(3)
    bench.run(10)
    for member in a.members()[1:]:
        assert member.reachability is Reachability.DIRECT
        assert member.rtt_s == pytest.approx(0.04, abs=0.001)


def test_relays_save_a_member_whose_direct_path_is_cut():
    bench = Bench()
    bench.cluster(4, exchange_probe=False)
    bench.cut = lambda source, destination: {source, destination} == {1, 2}
    bench.run(30)
    assert not bench.heard(MemberSuspected)
    assert bench.machines[1].member("b").reachability is Reachability.RELAYED
    changes = [event.member.name for event in bench.heard(ReachabilityChanged, at="a")]
    assert changes == ["b"]
    bench.cut = lambda source, destination: False
    bench.run(10)
    assert bench.machines[1].member("b").reachability is Reachability.DIRECT


def test_the_exchange_ping_saves_a_member_whose_datagrams_are_blocked():
    bench = Bench()
    bench.cluster(2)
    deliver = bench.deliver
    bench.deliver = lambda port, data, source=0: None
    bench.run(20)
    assert not bench.heard(MemberSuspected)
    assert bench.machines[1].statistics().probes_acked_exchange > 5
    assert bench.machines[1].member("b").reachability is Reachability.DIRECT
    bench.deliver = deliver


def test_relays_that_hear_nothing_say_nack_at_four_fifths_of_the_time_out():
    bench = Bench()
    bench.cluster(4, exchange_probe=False, gossip_interval_s=0, push_pull_interval_s=0)
    bench.kill(4)
    bench.run(6)
    requests = [(at, t) for at, port, t in bench.sent if any(isinstance(m, PingReq) for m in _messages(t))]
    nacks = [(at, t) for at, port, t in bench.sent if any(isinstance(m, Nack) for m in _messages(t))]
    assert requests
    assert len(nacks) >= len(requests) - 2  # The last may still be waited for.
    assert nacks[0][0] - requests[0][0] == 400 * MS + MS
    assert bench.machines[1].statistics().nacks_received >= 1


def _messages(transmit: object) -> tuple[Message, ...]:
    return opened(transmit.data) if isinstance(transmit, Datagram) else ()


def test_missed_nacks_raise_local_health_and_received_ones_do_not():
    bench = Bench()
    bench.cluster(4, exchange_probe=False, hold_accusations=False)
    bench.kill(4)
    bench.run(3)
    assert [swim.statistics().local_health for swim in bench.machines.values()] == [0, 0, 0]
    deaf = Bench(seed=1)
    deaf.cluster(4, exchange_probe=False)
    deaf.cut = lambda source, destination: destination == 1
    deaf.run(6)
    assert deaf.machines[1].statistics().local_health >= 2


def test_local_health_stretches_the_period_and_recovers():
    bench = Bench()
    bench.cluster(2, gossip_interval_s=0, push_pull_interval_s=0)
    bench.machines[1].core.health.apply(4)
    before = bench.machines[1].statistics().probes
    bench.run(10)
    slow = bench.machines[1].statistics().probes - before
    bench.run(10)
    before = bench.machines[1].statistics().probes
    bench.run(10)
    assert slow < 5
    assert bench.machines[1].statistics().probes - before in {9, 10, 11}


def test_a_suspect_is_told_in_the_same_packet_and_refutes():
    bench = Bench()
    bench.cluster(3)
    bench.freeze(3)
    bench.run(6, until=lambda: bench.view(1).get("c") is SUSPECT)
    bench.sent.clear()
    bench.thaw(3)
    bench.run(4)
    assert bench.view(1)["c"] is ALIVE
    assert bench.heard(MemberAlive, at="a")
    assert not bench.heard(MemberDied)
    assert bench.machines[3].local.incarnation > 0


def test_a_ping_to_a_suspect_carries_the_suspicion_first():
    bench = Bench()
    bench.cluster(3)
    bench.kill(3)
    bench.run(7)
    pings = [
        opened(transmit.data)
        for _, _, transmit in bench.sent
        if isinstance(transmit, Datagram) and transmit.destination == address(3)
    ]
    buddies = [m for m in pings if len(m) > 1 and isinstance(m[0], Suspect) and isinstance(m[1], Ping)]
    assert buddies
    plain = Bench()
    plain.cluster(3, buddy=False)
    plain.kill(3)
    plain.run(7)
    assert not any(
        isinstance(m[0], Suspect) and isinstance(m[1], Ping)
        for _, _, t in plain.sent
        if isinstance(t, Datagram) and len(m := opened(t.data)) > 1
    )


def test_confirmations_of_others_shorten_a_suspicion():
    bench = Bench(seed=3)
    bench.cluster(5)
    bench.kill(5)
    bench.run(6, until=lambda: any(swim.statistics().members_suspect for swim in bench.machines.values()))
    took = bench.run(11, until=lambda: all("e" not in view for view in bench.views()))
    assert took < 24
    assert sum(swim.statistics().confirmations for swim in bench.machines.values()) >= 3


def test_a_failed_local_send_goes_to_relays_at_once():
    bench = Bench()
    a, *_ = bench.cluster(4, gossip_interval_s=0, push_pull_interval_s=0)

    def probing() -> bool:
        return any(port == 1 and any(isinstance(m, Ping) for m in _messages(t)) for _, port, t in bench.sent)

    bench.run(3, until=probing)
    pings = [t for _, port, t in bench.sent if port == 1 and any(isinstance(m, Ping) for m in _messages(t))]
    target = pings[0].destination
    bench.sent.clear()
    bench.do(1, lambda swim, now: swim.send_failed(now, target))
    bench.do(1, lambda swim, now: swim.send_failed(now, target))
    asked = [message for _, message in sent_messages(bench, 1) if isinstance(message, PingReq)]
    assert len(asked) == 2
    assert sum(isinstance(t, Exchange) for _, port, t in bench.sent) == 1
    assert a.statistics().sends_failed == 2


def test_another_process_at_the_address_is_no_ack():
    bench = Bench()
    bench.cluster(3)
    bench.kill(3)
    bench.add("z", 3)
    bench.run(12)
    assert "c" not in bench.view(1)
    assert any(isinstance(message, NotMe) for _, message in sent_messages(bench, 3))
    assert bench.all_see("a", "b", "z")


def test_a_relay_passes_on_that_it_is_another_process():
    bench = Bench(seed=1)
    bench.cluster(4, exchange_probe=False, gossip_interval_s=0, push_pull_interval_s=0)
    bench.cut = lambda source, destination: {source, destination} == {1, 4}
    bench.kill(4)
    bench.add("z", 4, gossip_interval_s=0)
    bench.run(12)
    assert "d" not in bench.view(1)


def test_no_member_goes_unprobed_longer_than_the_round_robin_allows():
    bench = Bench()
    bench.cluster(6, gossip_interval_s=0, push_pull_interval_s=0, exchange_probe=False)
    bench.run(60)
    probes = [(at, dest) for at, dest in _direct_pings(bench, 1)]
    for port in range(2, 7):
        times = [at for at, dest in probes if dest == port]
        gaps = [(b - a) / S for a, b in itertools.pairwise(times)]
        assert len(times) >= 10
        assert max(gaps) <= 2 * 6 - 3 + 0.01


def _direct_pings(bench: Bench, port: int) -> list[tuple[int, int]]:
    return [
        (at, transmit.destination.port)
        for at, source, transmit in bench.sent
        if source == port and any(isinstance(m, Ping) for m in _messages(transmit))
    ]


def test_random_probe_order_reaches_everybody_too():
    bench = Bench()
    bench.cluster(4, probe_order="random")
    bench.sent.clear()
    bench.run(40)
    counts = [sum(dest == port for _, dest in _direct_pings(bench, 1)) for port in (2, 3, 4)]
    assert min(counts) >= 5


def test_without_suspicion_a_failed_probe_is_a_death():
    bench = Bench()
    bench.cluster(3, suspicion_mult=0, gossip_interval_s=0)
    bench.kill(3)
    took = bench.run(5, until=lambda: "c" not in bench.view(1))
    assert took <= 4.1
    assert bench.heard(MemberDied, at="a")


def test_late_and_foreign_answers_are_ignored():
    bench = Bench()
    bench.cluster(2)
    before = bench.machines[1].statistics()
    for message in (Nack(12345), NotMe(12345)):
        data = bench.machines[2].core.pack_datagram([encode_message(message)], 1)
        bench.deliver(1, data)
    assert bench.view(1) == {"a": ALIVE, "b": ALIVE}
    assert bench.machines[1].statistics().nacks_received == before.nacks_received


def test_only_relays_that_were_asked_count():
    bench = Bench()
    a, b, c, d = bench.cluster(4, gossip_interval_s=0, push_pull_interval_s=0)
    bench.cut = lambda source, destination: True
    bench.run(3, until=lambda: a.core.prober._probe is not None and a.core.prober._probe.has_asked)
    probe = a.core.prober._probe
    bench.do(1, lambda swim, now: swim.send_failed(now, address(99)))
    stranger = bench.add("z", 9)
    for message in (Nack(probe.sequence), Ack(probe.sequence)):
        bench.deliver(1, stranger.core.pack_datagram([encode_message(message)], 1))
    assert not probe.is_over
    assert probe.nacked_by == []
    for _ in range(2):
        relay = next(swim for swim in (b, c, d) if swim.local.name in probe.relays)
        bench.deliver(1, relay.core.pack_datagram([encode_message(Nack(probe.sequence))], 1))
    assert len(probe.nacked_by) == 1
    bench.deliver(1, relay.core.pack_datagram([encode_message(Ack(probe.sequence))], 1))
    assert probe.is_over
    probe.replied(bench.now, None)
    probe.abandon()


def test_an_exchange_answered_by_another_process_ends_the_probe():
    bench = Bench()
    bench.cluster(2)
    bench.kill(2)
    bench.add("z", 2)
    deliver = bench.deliver
    bench.deliver = lambda port, data, source=0: None
    bench.run(5)
    assert bench.view(1)["b"] is SUSPECT
    assert bench.machines[1].statistics().local_health == 0
    bench.deliver = deliver


def test_a_member_waits_once_in_a_round():
    bench = Bench()
    a, *_ = bench.cluster(4)
    a.core.prober.add("b")
    a.core.prober.add("b")
    assert a.core.prober._order[a.core.prober._index :].count("b") == 1


def test_a_suspicion_whose_end_moved_is_waited_for_anew():
    bench = Bench()
    a, *_ = bench.cluster(3)
    bench.cut = lambda source, destination: True
    entry = a.core.table.live["b"]
    a.core.news.accuse(bench.now, entry)
    a.core.news.restart_own_suspicions(bench.now + 30 * S)
    assert entry.suspicion.deadline == bench.now + 34 * S
    bench.run(33)
    assert bench.view(1)["b"] is SUSPECT
    bench.run(2)
    assert "b" not in bench.view(1)


def test_a_relay_forgets_what_it_relayed_and_passes_on_the_right_answer_only():
    bench = Bench()
    a, b, *_ = bench.cluster(3)
    request = encode_message(PingReq(7, "z", b"nobody!!", "10.0.0.1", 99))
    bench.deliver(1, b.core.pack_datagram([request], 1))
    sequence = next(reversed(a.core.waiters))
    for message in (Ack(sequence), Nack(sequence)):
        bench.deliver(1, b.core.pack_datagram([encode_message(message)], 1))
    assert sequence in a.core.waiters
    bench.run(3)
    assert sequence not in a.core.waiters
    assert a.core.relays._count == 0
