"""The machine as an object: stored, watched, bounded, healed; what says nothing new changes nothing."""

from __future__ import annotations

import pickle

from swimcluster.codec import encode_message
from swimcluster.events import (
    VitalsChanged,
)
from swimcluster.membership import Entry
from swimcluster.messages import Alive
from swimcluster.push_pull import StateExchange
from swimcluster.transmits import Datagram, Exchange, JoinStatus
from tests.fakes.swim_bench import KEY, MS, Bench, S, address


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


def test_a_member_with_a_small_table_takes_the_beginning_of_a_large_state_and_counts_the_rest():
    bench = Bench()
    crowd = [bench.add(name, port, seeds=[1] if port > 1 else []) for port, name in enumerate("abcdefghijkl", 1)]
    bench.run(5)
    for number in range(100):
        news = Alive(f"x{number:03}", "10.9.9.9", 1 + number, 1, b"instance", 0, b"m" * 60, b"")
        crowd[0].core.table.add(Entry(bench.now, news, address(99)), "test")
    small = bench.add("z", 50, seeds=[1], members_max=4)
    before = crowd[0].statistics().exchanges_answered
    bench.run(1)
    assert small.join_status is JoinStatus.JOINED
    assert len(small.members()) == 4
    assert crowd[0].statistics().exchanges_answered > before
    assert small.statistics().dropped_malformed == 0
    sent = 1 + 1 + 11 + 100  # Opening, its own Alive, the other members, those nobody else knows.
    assert small.statistics().dropped_full >= sent - (2 * 4 + 16)
    dropped = small.statistics().dropped_full
    request = _state(crowd[0])
    assert small.exchange_received(bench.now, None, request) is not None
    assert small.statistics().dropped_full - dropped >= sent - (2 * 4 + 16)


def _state(swim):
    swim.core.synchronizer.exchange(address(50), StateExchange(swim.core))
    return swim.transmits()[-1].data


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
