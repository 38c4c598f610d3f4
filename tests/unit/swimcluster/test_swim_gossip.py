"""When the gossip tick speaks, rests and hastens (rule P19)."""

from __future__ import annotations

import itertools
from collections import Counter

from swimcluster.dissemination import Packer
from swimcluster.gossip import AGAIN, AGAIN_MAX
from swimcluster.member import MemberState
from swimcluster.transmits import Datagram
from tests.fakes.swim_bench import MS, Bench, address, machine

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
    bench = quiet_cluster(20)
    bench.do(3, lambda swim, now: swim.set_metadata(now, b"fresh"))

    def told() -> int:
        return sum(swim.member("c").metadata == b"fresh" for swim in bench.machines.values())

    bench.run(0.01)
    assert told() >= 15  # chance may leave a few to the second tick
    bench.run(0.25, until=lambda: told() == 20)


def test_each_round_of_the_tick_visits_everybody_once():
    core = quiet_cluster(9).machines[1].core
    gossip = core.gossip
    gossip._round.clear()
    picked = [[entry.name for entry in gossip._targets(3)] for _ in range(80)]
    assert all(len(set(names)) == 3 for names in picked)
    order = [name for names in picked for name in names]
    assert len(order) == 30 * 8
    for start in range(0, len(order), 8):
        assert len(set(order[start : start + 8])) == 8


def test_in_a_small_cluster_an_author_tells_all_at_once_and_they_repeat_it_a_little_later():
    bench = quiet_cluster(13)
    bench.do(3, lambda swim, now: swim.set_metadata(now, b"fresh"))
    since = bench.now
    bench.run(0.03)
    assert all(swim.member("c").metadata == b"fresh" for swim in bench.machines.values())
    assert {source for _, source, _ in bench.sent} == {3}
    assert len(bench.sent) == 12
    bench.run(1)
    assert next(at - since for at in gossip_of(bench, 1)) == 51 * MS  # it heard after 1 ms
    assert gossip_of(bench, 3) == [since]  # twelve copies at once are enough of its own


def test_whom_the_author_missed_hears_from_the_others():
    bench = quiet_cluster(8)
    bench.cut = lambda source, destination: (source, destination) == (1, 8)
    bench.do(1, lambda swim, now: swim.set_metadata(now, b"fresh"))
    assert bench.run(1, until=lambda: bench.machines[8].member("a").metadata == b"fresh") <= 0.2


def test_news_about_another_goes_to_as_many_as_always():
    bench = quiet_cluster(8)
    bench.do(1, lambda swim, now: swim.core.news.accuse(now, swim.core.table.live["b"]))
    since = bench.now
    bench.run(0.01)
    assert len([at for at, source, _ in bench.sent if (at, source) == (since, 1)]) == 3


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
    assert 50 <= len(gossip_of(bench, 1)) <= 52  # 5 s: each interval one tick and its repeat


def test_the_tick_after_fresh_news_comes_after_a_quarter_of_an_interval():
    bench = quiet_cluster(20)
    bench.do(1, lambda swim, now: swim.set_metadata(now, b"fresh"))
    since = bench.now
    bench.run(2)
    # Eight transmits are three ticks: at once, a quarter later, and on time.
    assert [at - since for at in gossip_of(bench, 1)] == [0, 50 * MS, 200 * MS]


def test_fresh_news_goes_first_to_those_who_may_not_know_it():
    bench = quiet_cluster(20)
    bench.do(1, lambda swim, now: swim.set_metadata(now, b"fresh"))
    since = bench.now
    bench.run(0.01)
    first_of = {}
    for at, port, transmit in bench.sent:
        first_of.setdefault(port, []).append((at, transmit.destination.port))
    hearers = [port for port, sends in first_of.items() if sends[0][0] == since + MS]
    assert len(hearers) == 3
    assert all(destination != 1 for port in hearers for _, destination in first_of[port])


def test_a_ping_tells_what_was_news_lately_to_whom_it_missed():
    bench = Bench()
    bench.cluster(8, push_pull_interval_s=0)
    bench.run(15)
    bench.cut = lambda source, destination: destination == 8 and bench.now < since + 500 * MS
    since = bench.now
    bench.do(1, lambda swim, now: swim.set_metadata(now, b"fresh"))
    bench.run(0.5)
    assert bench.machines[8].member("a").metadata == b"of a"
    bench.run(2.5, until=lambda: bench.machines[8].member("a").metadata == b"fresh")


def test_a_farewell_is_told_again_and_a_suspicion_is_not():
    bench = Bench()
    machines = bench.cluster(8, push_pull_interval_s=0, gossip_to_dead_s=0)
    bench.run(15)
    missed = bench.machines[8]
    bench.cut = lambda source, destination: destination == 8 and bench.now < since + 1000 * MS
    since = bench.now
    bench.do(2, lambda swim, now: swim.leave(now))
    bench.do(3, lambda swim, now: swim.core.news.accuse(now, swim.core.table.live["a"]))
    bench.kill(1)
    bench.run(0.9)
    assert sum(swim.member("a").state is MemberState.SUSPECT for swim in machines[2:7]) >= 4
    for swim in machines[2:7]:
        assert swim.core.gossip.again(1000) == [swim.core.table.gone["b"].claim_bytes("")]
    bench.run(3, until=lambda: missed.member("b").state is MemberState.LEFT)


def test_what_was_news_lately_is_bounded_and_ends():
    core = machine("a", 1).core
    for number in range(AGAIN_MAX + 44):
        core.gossip.heard_news(f"x{number}", "")
    core.gossip.heard_news("a", "")
    assert core.gossip.again(1000) == [core.identity.alive_bytes]  # the others are unknown and forgotten
    assert core.gossip.again(10) == []
    for _ in range(AGAIN - 1):
        assert core.gossip.was_lately
        assert core.gossip.again(1000)
    assert not core.gossip.was_lately
    assert core.gossip.again(1000) == []


def test_news_that_finds_no_room_in_a_ping_goes_first_in_the_next():
    bench = Bench()
    machines = bench.cluster(20, metadata_bytes_max=256, push_pull_interval_s=0, probe_interval_s=60)
    core = machines[1].core
    bench.run(2)
    names = [entry.name for entry in core.table.sorted_live()]
    core.packer = Packer(64, 64, 256)
    while core.gossip.was_lately:
        core.gossip.again(1000)
    for name in names:
        core.gossip.heard_news(name, "")
    told = [core.gossip.again(200) for _ in range(AGAIN * len(names))]
    each = [message for packet in told for message in packet]
    assert Counter(each) == {core.table.live[name].alive_bytes: AGAIN for name in names}
    assert len(set(each[: len(names)])) == len(names)  # nobody twice before all once
    assert max(sum(map(len, packet)) for packet in told) <= 200


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
