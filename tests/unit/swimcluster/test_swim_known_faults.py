"""Faults that users of other membership libraries reported, tried here: what must happen instead.

Those tried elsewhere by rule (names, refutation, verification, keys, bounds) are not repeated.
"""

from __future__ import annotations

import random

import pytest

from swimcluster.address import Address
from swimcluster.codec import encode_message
from swimcluster.config import Config
from swimcluster.events import MemberDied, MemberJoined, MemberLeft, MemberSuspected, PeerRefused
from swimcluster.member import MemberState
from swimcluster.messages import Alive, Dead
from swimcluster.push_pull import StateExchange
from swimcluster.swim import Swim
from swimcluster.transmits import Datagram, Exchange
from tests.fakes.swim_bench import KEY, Bench, S, address, machine


def test_members_that_all_restart_with_a_lost_epoch_all_come_back():
    bench = Bench()
    bench.cluster(6)
    for swim in bench.machines.values():
        swim.core.identity.change("test", incarnation=100)
    bench.run(2)
    for turn in range(3):
        for port in range(1, 7):
            bench.kill(port)
            seeds = [other for other in range(1, 7) if other != port]
            bench.add("abcdef"[port - 1], port, epoch=0, seeds=seeds, metadata=b"%d" % turn)
            bench.run(0.5)
        bench.run(20, until=lambda: bench.all_see(*"abcdef"))
        assert all(m.metadata == b"%d" % turn for swim in bench.machines.values() for m in swim.members())


def test_state_of_a_member_long_gone_does_not_bring_it_back():
    bench = Bench()
    bench.cluster(3)
    words = bench.machines[3].core.identity.alive_bytes
    bench.kill(3)
    bench.run(15)
    for port in (1, 2):
        table = bench.machines[port].core.table
        table.forget(table.gone["c"], "test")
    bench.events.clear()
    bench.deliver(1, bench.machines[2].core.pack_datagram([words], 1))
    bench.run(15)
    assert not bench.heard(MemberJoined)
    assert bench.views() == [["a", "b"], ["a", "b"]]


def test_members_that_left_are_forgotten_like_dead_ones():
    bench = Bench()
    bench.cluster(3, push_pull_interval_s=1, tombstone_s=5)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(2)
    bench.kill(3)
    assert [m.name for m in bench.machines[1].departed()] == ["c"]
    bench.run(15)
    assert bench.machines[1].departed() == ()


def test_more_than_255_changes_at_once_and_state_beyond_64_kilobytes_arrive_whole():
    bench = Bench()
    a, b = bench.cluster(2, source_rate_max=0)
    instances = {f"m{i:04}": i.to_bytes(8, "big") for i in range(400)}
    from swimcluster.membership import Entry

    for i, (name, instance) in enumerate(instances.items()):
        words = Alive(name, "10.0.0.9", i + 1, 1, instance, 0, b"m" * 200, b"")
        a.core.table.add(Entry(bench.now, words, Address("10.0.0.9", i + 1)), "test")
    a.core.synchronizer.exchange(address(2), StateExchange(a.core))
    request = a.transmits()[-1].data
    assert len(request) > 65_536
    assert bench.request(2, request) is not None
    assert b.statistics().members_unverified == 400


def test_a_member_with_the_longest_names_and_metadata_is_not_suspected_for_its_size():
    bench = Bench()
    names = ["a" * 64, "b" * 64, "c" * 64]
    for port, name in enumerate(names, 1):
        bench.add(name, port, seeds=[1] if port > 1 else [], metadata=b"m" * 512)
        bench.do(port, lambda swim, now: swim.set_vitals(now, b"v" * 128))
    bench.run(5)
    bench.freeze(3)
    bench.run(3)
    bench.thaw(3)
    bench.run(10)
    assert bench.all_see(*names)
    assert max(len(t.data) for _, _, t in bench.sent if isinstance(t, Datagram)) <= 1400


def test_pictures_of_members_do_not_change_under_their_readers():
    bench = Bench()
    a, *_ = bench.cluster(2)
    before = a.members()
    bench.do(2, lambda swim, now: swim.set_metadata(now, b"changed"))
    bench.run(1)
    assert [m.metadata for m in before] == [b"of a", b"of b"]
    with pytest.raises(AttributeError):
        before[0].state = MemberState.DEAD  # type: ignore[misc]


def test_a_hundred_thousand_hostile_inputs_change_nothing_and_raise_nothing():
    bench = Bench()
    a, b = bench.cluster(2, source_rate_max=0)
    draws = random.Random(7)
    sample = b.core.pack_datagram([b.core.identity.alive_bytes], 1)
    b.core.synchronizer.exchange(address(1), StateExchange(b.core))
    request = b.transmits()[-1].data
    before = [(m.name, m.state, m.incarnation) for m in a.members()]
    for i in range(50_000):
        base = bytearray(sample if i % 2 else request)
        for _ in range(draws.randrange(1, 4)):
            base[draws.randrange(len(base))] = draws.randrange(256)
        end = draws.randrange(len(base) + 1) if i % 3 == 0 else len(base)
        hostile = bytes(base[:end]) if i % 5 else draws.randbytes(draws.randrange(60))
        a.receive_datagram(bench.now, None, hostile)
        reply = a.exchange_received(bench.now, None, hostile)
        assert reply is None or len(reply) <= len(hostile) or hostile in {sample, request}
    a.events()
    assert [(m.name, m.state, m.incarnation) for m in a.members()] == before


def test_authentic_packets_of_any_content_raise_nothing():
    bench = Bench()
    a, b = bench.cluster(2, source_rate_max=0)
    from swimcluster.mac import FrameKind, seal

    draws = random.Random(11)
    body = b.core.pack_datagram([b.core.identity.alive_bytes], 1)[28:-16]
    for i in range(20_000):
        altered = bytearray(body)
        for _ in range(draws.randrange(1, 5)):
            altered[draws.randrange(len(altered))] = draws.randrange(256)
        data = seal(b.core.keyring, FrameKind.DATAGRAM, b.local.instance, 10**6 + i, bytes(altered))
        a.receive_datagram(bench.now, None, data)
        a.transmits()
        a.events()
    assert a.local.state is MemberState.ALIVE
    assert len(a.members()) <= 2


def test_members_with_ipv6_addresses_and_dns_names_find_each_other():
    first = Swim(
        Config.lan(name="a", advertise="[fd00::1]:7946", keys=[KEY]),
        now=0,
        epoch=1,
        instance=b"a" * 8,
        rng=random.Random(1),
    )
    second = Swim(
        Config.lan(name="b", advertise="b.example:7946", seeds=["[fd00::1]:7946"], keys=[KEY]),
        now=0,
        epoch=1,
        instance=b"b" * 8,
        rng=random.Random(2),
    )
    second.advance(1)
    (dial,) = [t for t in second.transmits() if isinstance(t, Exchange)]
    assert dial.destination == Address("fd00::1", 7946)
    second.exchange_replied(2, dial.id, first.exchange_received(2, None, dial.data))
    (ping,) = first.transmits()
    assert ping.destination == Address("b.example", 7946)
    second.receive_datagram(3, None, ping.data)
    for transmit in second.transmits():
        if transmit.destination == Address("fd00::1", 7946) and isinstance(transmit, Datagram):
            first.receive_datagram(4, None, transmit.data)
    assert [m.name for m in first.members()] == [m.name for m in second.members()] == ["a", "b"]


def test_a_leave_under_loss_is_not_taken_for_a_failure():
    for seed in range(3):
        bench = Bench(seed=seed)
        bench.cluster(6)
        bench.loss = 0.3
        bench.do(6, lambda swim, now: swim.leave(now))
        bench.run(4)
        bench.kill(6)
        bench.run(30)
        assert len(bench.heard(MemberLeft)) == 5
        assert not bench.heard(MemberDied)


def test_failed_members_are_among_the_addresses_worth_keeping():
    bench = Bench()
    bench.cluster(3)
    bench.kill(2)
    bench.kill(3)
    bench.run(20)
    kept = [m.address for m in (*bench.machines[1].members(), *bench.machines[1].departed()) if not m.is_local]
    bench.kill(1)
    bench.add("b", 2, epoch=2)
    again = bench.add("a", 1, epoch=2, seeds=[44])
    bench.do(1, lambda swim, now: swim.learn_addresses(now, kept))
    assert again.join_status.value == "joining"
    bench.run(10, until=lambda: bench.all_see("a", "b"))


def test_a_member_that_missed_a_rotation_is_told_so_on_both_sides():
    bench = Bench()
    bench.cluster(3)
    bench.kill(3)
    bench.run(15)
    for port in (1, 2):
        new = bench.do(port, lambda swim, now: swim.install_key(now, b"the key of next year"))
    bench.run(1)
    old = bench.machines[1].key_ids()[0]
    for call in ("use_key", "remove_key"):
        for port in (1, 2):
            bench.do(port, lambda swim, now, c=call: getattr(swim, c)(now, new if c == "use_key" else old))
    bench.add("c", 3, epoch=2, seeds=[1])
    bench.run(10)
    assert any(old.hex() in event.reason for event in bench.heard(PeerRefused, at="a"))
    assert any(new.hex() in event.reason for event in bench.heard(PeerRefused, at="c"))
    bench.do(3, lambda swim, now: swim.install_key(now, b"the key of next year"))
    bench.do(3, lambda swim, now: swim.use_key(now, new))
    bench.run(20, until=lambda: bench.all_see("a", "b", "c"))


def test_with_a_key_nothing_unkeyed_is_taken():
    bench = Bench()
    bench.cluster(2)
    open_one = machine("z", 9, now=bench.now, keys=[], insecure=True)
    bench.deliver(1, open_one.core.pack_datagram([open_one.core.identity.alive_bytes], 1))
    assert bench.machines[1].statistics().dropped_key == 1
    assert bench.machines[1].statistics().members_unverified == 0


@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_member_behind_a_one_way_cut_takes_no_healthy_one_with_it(direction):
    bench = Bench()
    bench.cluster(6)
    bench.cut = lambda source, destination: (destination if direction == "in" else source) == 6
    bench.run(120)
    deaths = [(name, e.member.name) for _, name, e in bench.events if isinstance(e, MemberDied) and name != "f"]
    assert {who for _, who in deaths} <= {"f"}
    assert len(deaths) <= 5
    bench.cut = lambda source, destination: False
    bench.run(60, until=lambda: bench.all_see(*"abcdef"))


def test_a_slow_member_does_not_make_healthy_ones_flap():
    bench = Bench()
    bench.cluster(6)
    for _ in range(20):
        bench.freeze(6)
        bench.run(1.5)
        bench.thaw(6)
        bench.run(1.5)
    assert not [e for e in bench.heard(MemberDied) if e.member.name != "f"]
    assert not [e for e in bench.heard(MemberSuspected) if e.member.name != "f"]


def test_a_seed_stays_a_name_at_each_attempt():
    swim = Swim(
        Config.lan(name="b", advertise="10.0.0.2:1", seeds=["cluster.example:7946"], keys=[KEY]),
        now=0,
        epoch=1,
        instance=b"b" * 8,
        rng=random.Random(2),
    )
    dialled, now = [], 0
    while len(dialled) < 5:
        now = swim.next_deadline() or 0
        swim.advance(now)
        for transmit in swim.transmits():
            dialled.append(transmit.destination)
            swim.exchange_failed(now, transmit.id)
    assert set(dialled) == {Address("cluster.example", 7946)}
    assert now < 60 * S


def test_two_that_hold_each_other_dead_settle_with_few_words():
    bench = Bench()
    bench.cluster(2)
    bench.cut = lambda source, destination: True
    bench.run(10)
    assert bench.views() == [["a"], ["b"]]
    bench.sent.clear()
    bench.cut = lambda source, destination: False
    bench.run(20, until=lambda: bench.all_see("a", "b"))
    bench.run(1)
    told = sum(swim.statistics().stale_answered for swim in bench.machines.values())
    assert told <= 4
    assert not bench.heard(MemberJoined, at="z")


def test_any_lateness_of_a_driver_is_survived():
    bench = Bench()
    a, b = bench.cluster(2)
    for swim in (a, b):
        for late in (1, 10**6, S, 3600 * S, 10**9 * S):
            swim.advance(bench.now + late)
            assert (swim.next_deadline() or 0) > bench.now + late
            swim.transmits()
    assert a.local.state is MemberState.ALIVE


def test_rolling_restarts_with_new_names_do_not_grow_the_table_for_ever():
    bench = Bench()
    bench.cluster(3, reconnect_for_s=30, tombstone_s=10, push_pull_interval_s=3)
    for turn in range(10):
        bench.add(f"pod-{turn}", 100 + turn, seeds=[1], reconnect_for_s=30, tombstone_s=10, push_pull_interval_s=3)
        bench.run(3)
        bench.kill(100 + turn)
        bench.run(12)
    bench.run(60)
    for swim in bench.machines.values():
        assert [m.name for m in swim.members()] == ["a", "b", "c"]
        assert swim.departed() == ()
        assert swim.statistics().members_unverified == 0


def test_everything_recorded_and_sent_again_changes_no_view():
    bench = Bench()
    bench.cluster(3, source_rate_max=0)
    bench.kill(3)
    bench.run(12)
    bench.add("c", 3, epoch=2, seeds=[1], source_rate_max=0)
    bench.run(5)
    bench.do(2, lambda swim, now: swim.set_metadata(now, b"latest"))
    bench.run(3)
    recorded = list(bench.sent)
    fresh = bench.add("d", 4, seeds=[1], source_rate_max=0)
    bench.run(5)
    before = {p: [(m.name, m.state, m.epoch, m.metadata) for m in s.members()] for p, s in bench.machines.items()}
    bench.events.clear()
    for _, _, transmit in recorded:
        for port in (1, 2, 3, 4):
            if isinstance(transmit, Datagram):
                bench.deliver(port, transmit.data)
            else:
                bench.request(port, transmit.data)
    bench.run(30)
    after = {p: [(m.name, m.state, m.epoch, m.metadata) for m in s.members()] for p, s in bench.machines.items()}
    assert after == before
    assert min(swim.statistics().dropped_replay for swim in bench.machines.values()) > 10
    assert fresh.statistics().dropped_own == 0
    assert not bench.heard(MemberDied)


def test_dead_news_by_state_exchange_lets_the_member_refute():
    bench = Bench()
    a, b, c = bench.cluster(3)
    lie = encode_message(Dead("c", 1, c.local.instance, 0, "b"))
    from swimcluster.messages import Sync

    b.core.exchange(address(1), [encode_message(Sync(0)), lie], StateExchange(b.core), S)
    bench.flush(2)
    bench.run(5)
    assert bench.heard(MemberSuspected, at="a")
    assert a.member("c").state is MemberState.ALIVE
    assert not bench.heard(MemberDied)


def test_members_that_forget_the_dead_at_different_times_do_not_remind_each_other():
    bench = Bench()
    for port, name in enumerate("abcd", 1):
        keeps_s = 5 if port % 2 else 200
        times = {"tombstone_s": keeps_s, "reconnect_for_s": keeps_s, "push_pull_interval_s": 1}
        bench.add(name, port, seeds=[1] if port > 1 else [], **times)
    bench.run(5, until=lambda: bench.all_see(*"abcd"))
    bench.kill(3)
    bench.run(40)
    forgetful, mindful = bench.machines[1], bench.machines[2]
    assert forgetful.departed() == ()
    assert [m.name for m in mindful.departed()] == ["c"]
    bench.events.clear()
    bench.run(30)
    assert forgetful.departed() == ()
    assert not bench.heard(MemberDied)
    assert not bench.heard(MemberJoined)
    assert forgetful.statistics().updates_queued == 0
