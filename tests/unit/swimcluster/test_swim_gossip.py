"""When the gossip tick speaks, rests and hastens (rule P19)."""

from __future__ import annotations

import itertools

from swimcluster.transmits import Datagram
from tests.fakes.swim_bench import MS, Bench, address

QUIET = {"probe_interval_s": 600.0, "probe_timeout_s": 300.0, "push_pull_interval_s": 0, "reconnect_interval_s": 0}
"""Nothing but gossip sends."""


def gossip_of(bench: Bench, port: int) -> list[int]:
    """Return when a member sent datagrams."""
    return sorted({at for at, source, transmit in bench.sent if source == port and isinstance(transmit, Datagram)})


def quiet_cluster(size: int, **settings: object) -> Bench:
    bench = Bench()
    bench.cluster(size, **(QUIET | settings))
    bench.run(5)
    bench.sent.clear()
    return bench


def test_a_member_with_nothing_to_say_sends_no_gossip():
    bench = quiet_cluster(8)
    bench.run(30)
    assert bench.sent == []


def test_a_member_with_vitals_never_falls_silent():
    bench = quiet_cluster(8)
    bench.do(1, lambda swim, now: swim.set_vitals(now, b"v"))
    since = bench.now
    bench.run(10)
    ticks = [since, *gossip_of(bench, 1)]
    assert max(b - a for a, b in itertools.pairwise(ticks)) <= 200 * MS
    assert len(ticks) >= 50


def test_fresh_news_crosses_the_cluster_without_waiting_for_ticks():
    bench = quiet_cluster(8)
    bench.do(3, lambda swim, now: swim.set_metadata(now, b"fresh"))

    def told() -> int:
        return sum(swim.member("c").metadata == b"fresh" for swim in bench.machines.values())

    bench.run(0.01)
    assert told() >= 6  # chance may leave one or two to the second tick
    bench.run(0.21, until=lambda: told() == 8)


def test_fresh_news_hastens_the_tick_of_a_member_with_vitals_too():
    bench = quiet_cluster(4)
    bench.do(1, lambda swim, now: swim.set_vitals(now, b"v"))
    bench.run(3)
    bench.do(1, lambda swim, now: swim.set_metadata(now, b"fresh"))
    assert bench.run(1, until=lambda: bench.machines[2].member("a").metadata == b"fresh") <= 0.01


def test_a_stream_of_news_makes_at_most_two_ticks_per_interval():
    bench = quiet_cluster(8)
    for number in range(1000):
        bench.do(1, lambda swim, now, number=number: swim.set_metadata(now, b"%d" % number))
        bench.run(0.005)
    assert 25 <= len(gossip_of(bench, 1)) <= 30  # 5 s: one tick per interval, for the first one waited for nothing


def test_a_broadcast_wakes_a_resting_tick():
    bench = quiet_cluster(4)
    bench.do(2, lambda swim, now: swim.broadcast(now, b"hello"))
    bench.run(0.01)
    assert gossip_of(bench, 2)


def test_vitals_that_wait_for_their_interval_are_sent_by_a_later_tick():
    bench = quiet_cluster(3, probe_interval_s=1.0, probe_timeout_s=0.5)
    bench.do(1, lambda swim, now: swim.set_vitals(now, b"one"))
    bench.run(0.1)
    bench.do(1, lambda swim, now: swim.set_vitals(now, b"two"))
    bench.run(1.5)
    assert bench.machines[2].member("a").vitals == b"two"


def test_without_gossip_news_rides_on_probes_alone():
    bench = Bench()
    bench.cluster(3, gossip_interval_s=0)
    bench.do(1, lambda swim, now: swim.set_metadata(now, b"fresh"))
    bench.run(10, until=lambda: all(swim.member("a").metadata == b"fresh" for swim in bench.machines.values()))


def test_the_newly_dead_are_gossiped_to_although_the_living_hear_nothing_new():
    bench = Bench()
    bench.cluster(4, suspicion_mult=0)
    bench.kill(4)
    bench.run(20, until=lambda: all("d" not in view for view in bench.views()))
    bench.run(5)
    bench.sent.clear()
    bench.run(2)
    told = [t.destination for _, port, t in bench.sent if port == 1 and isinstance(t, Datagram)]
    assert told.count(address(4)) >= 8
