"""The small parts: arithmetic, windows, queues, timers."""

from __future__ import annotations

import math

import pytest

from swimcluster.config import NS_PER_S, Config
from swimcluster.dissemination import MISSES_MAX, Packer, UpdateQueue, transmit_limit
from swimcluster.local_health import LocalHealth
from swimcluster.push_pull import push_pull_scale
from swimcluster.rate_limit import SOURCES_MAX, SourceLimiter
from swimcluster.replay_window import WINDOW, ReplayWindows
from swimcluster.statistics import Statistics, prometheus_text
from swimcluster.suspicion import Suspicion, maximum_ns, minimum_ns, needed_confirmations, timeout_ns
from swimcluster.timers import Timers

LAN = Config.lan(name="a", keys=[b"k" * 16])


# Suspicion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "least", "most"),
    [(1, 4.0, 24.0), (10, 4.0, 24.0), (32, 6.021, 36.126), (100, 8.0, 48.0), (1000, 12, 72)],
)
def test_suspicion_bounds_follow_memberlists_formula(members, least, most):
    assert minimum_ns(LAN, members) == round(least * 1000) * 1_000_000
    assert maximum_ns(LAN, members) == round(most * 1000) * 1_000_000


def test_confirmations_needed_are_capped_by_who_can_confirm():
    assert [needed_confirmations(LAN, n) for n in (1, 2, 3, 4, 5, 6, 100)] == [0, 0, 1, 2, 3, 3, 3]


def test_the_time_out_falls_with_the_logarithm_of_confirmations():
    least, most = minimum_ns(LAN, 128), maximum_ns(LAN, 128)
    seconds = [timeout_ns(least, most, 3, confirmed) / NS_PER_S for confirmed in range(4)]
    assert [round(s, 1) for s in seconds] == [50.6, 29.5, 17.2, 8.4]
    assert timeout_ns(least, most, 0, 0) == least


def test_only_new_accusers_confirm_and_no_more_than_needed():
    suspicion = Suspicion(LAN, now=0, members=4, accuser="b")
    before = suspicion.deadline
    assert not suspicion.confirm("b")
    assert not suspicion.confirm("")
    assert suspicion.confirm("c")
    assert suspicion.deadline < before
    assert suspicion.confirm("d")
    assert suspicion.deadline == suspicion.minimum
    assert not suspicion.confirm("e")


def test_the_first_accuser_of_a_suspicion_without_one_is_no_confirmation():
    suspicion = Suspicion(LAN, now=0, members=4, accuser="")
    assert suspicion.confirm("b")
    assert suspicion.deadline == suspicion.maximum


# Local health ---------------------------------------------------------------------------------------------------


def test_local_health_stays_within_its_bounds_and_scales():
    health = LocalHealth(8)
    health.apply(-1)
    assert health.scale(500) == 500
    health.apply(20)
    assert health.score == 8
    assert health.scale(500) == 4500


# Dissemination --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "limit"), [(1, 4), (2, 4), (9, 4), (10, 8), (99, 8), (100, 12), (1000, 16)])
def test_the_transmit_limit_follows_memberlists_formula(members, limit):
    assert transmit_limit(4, members) == limit


def test_an_update_is_sent_as_often_as_its_limit_and_then_dropped():
    queue = UpdateQueue(10)
    queue.put("a", b"a" * 20)
    sent = 0
    while queue:
        sent += len(queue.take(1000, 4, 1))
    assert sent == 4


def test_the_least_sent_go_first_and_then_the_newest():
    queue = UpdateQueue(10)
    for name in "abc":
        queue.put(name, name.encode() * 20)
    assert queue.take(20, 9, 1) == [b"c" * 20]
    assert queue.take(1000, 9, 1) == [b"b" * 20, b"a" * 20, b"c" * 20]


def test_what_does_not_fit_is_skipped_and_smaller_news_goes():
    queue = UpdateQueue(10)
    queue.put("small", b"s" * 20)
    queue.put("large", b"l" * 200)
    assert queue.take(100, 4, 1) == [b"s" * 20]
    assert len(queue) == 2


def test_a_packet_is_called_full_after_some_misses():
    queue = UpdateQueue(100)
    queue.put("small", b"s" * 20)
    for i in range(MISSES_MAX + 1):
        queue.put(i, b"l" * 200)
    assert queue.take(100, 4, 1) == []


def test_a_new_update_replaces_the_older_about_the_same_subject():
    queue = UpdateQueue(10)
    queue.put("a", b"old" * 10)
    queue.put("a", b"new" * 10)
    assert queue.take(1000, 4, 1) == [b"new" * 10]


def test_a_full_queue_drops_the_most_sent():
    queue = UpdateQueue(2)
    queue.put("old", b"o" * 20)
    queue.take(1000, 4, 1)
    queue.put("b", b"b" * 20)
    assert not queue.put("c", b"c" * 20)
    assert sorted(queue.take(1000, 4, 1)) == [b"b" * 20, b"c" * 20]


def test_copies_count_as_transmits():
    queue = UpdateQueue(10)
    queue.put("a", b"a" * 20)
    queue.take(1000, 4, 3)
    queue.take(1000, 4, 1)
    assert not queue


def test_waiting_user_broadcasts_keep_a_share_while_members_change():
    packer = Packer(1000, 10, 256)
    for i in range(200):
        packer.updates.put(i, bytes([i]) * 60)
    packer.broadcasts.put("u", b"u" * 250)
    chosen = packer.fill(1000, 4)
    assert b"u" * 250 in chosen
    assert sum(map(len, chosen)) <= 1000
    assert sum(len(data) == 60 for data in chosen) == 12


def test_a_quiet_packer_gives_all_room_to_broadcasts():
    packer = Packer(10, 10, 256)
    for i in range(4):
        packer.broadcasts.put(i, bytes([i]) * 240)
    assert len(packer.fill(1000, 4)) == 4
    packer.updates.put("a", b"a" * 20)
    assert len(packer.fill(1000, 1)) == 5
    assert packer.fill(1000, 4) == []


# Replay windows and rate ----------------------------------------------------------------------------------------


def test_a_counter_is_taken_once_in_any_order_within_the_window():
    windows = ReplayWindows(10)
    order = [5, 3, 4, 9, 1, 8]
    assert [windows.is_fresh(b"i", counter) for counter in order] == [True] * 6
    assert not any(windows.is_fresh(b"i", counter) for counter in order)
    assert windows.is_fresh(b"i", 9 + WINDOW)
    assert not windows.is_fresh(b"i", 2)
    assert windows.is_fresh(b"i", 5 * WINDOW)
    assert not windows.is_fresh(b"i", 5 * WINDOW)
    assert windows.is_fresh(b"j", 3)


def test_the_sender_heard_longest_ago_is_forgotten_when_there_are_too_many():
    windows = ReplayWindows(2)
    for sender in (b"a", b"b", b"c"):
        windows.is_fresh(sender, 1)
    assert windows.is_fresh(b"a", 1)
    assert not windows.is_fresh(b"c", 1)


def test_a_busy_senders_window_outlasts_a_flood_of_others():
    windows = ReplayWindows(10)
    assert windows.is_fresh(b"first in", 1)
    for counter in range(2, 100):
        for stranger in range(9):
            windows.is_fresh(b"%d %d" % (counter, stranger), 1)
        assert windows.is_fresh(b"first in", counter)
    assert not any(windows.is_fresh(b"first in", counter) for counter in range(1, 100))
    assert len(windows._windows) == 10


def test_a_source_is_held_to_its_rate_and_others_are_not():
    limiter = SourceLimiter(100)
    admitted = sum(limiter.admits(0, "10.0.0.1") for _ in range(500))
    assert admitted == 101
    assert limiter.admits(0, "10.0.0.2")
    assert not limiter.admits(0, "10.0.0.1")
    assert limiter.admits(NS_PER_S // 2, "10.0.0.1")


def test_sources_are_bounded_and_zero_means_no_limit():
    limiter = SourceLimiter(100)
    for i in range(SOURCES_MAX + 10):
        limiter.admits(0, str(i))
    assert len(limiter._empty_at) == SOURCES_MAX
    assert all(SourceLimiter(0).admits(0, "x") for _ in range(10_000))


# Timers ---------------------------------------------------------------------------------------------------------


def test_timers_fire_in_order_however_late_and_those_set_meanwhile_too():
    timers, fired = Timers(), []
    timers.set(30, lambda now, what: fired.append((now, what)), "c")
    timers.set(10, lambda now, what: fired.append((now, what)), "a")
    timers.set(10, lambda now: timers.set(20, lambda then: fired.append((then, "b"))))
    cancelled = timers.set(5, lambda now: fired.append((now, "never")))
    cancelled.cancel()
    assert timers.next_at() == 10
    timers.run(25)
    assert fired == [(25, "a"), (25, "b")]
    timers.postpone(100)
    assert timers.next_at() == 130
    timers.clear()
    assert timers.next_at() is None
    assert len(timers) == 0


def test_a_cancelled_timer_is_skipped_when_its_time_comes():
    timers = Timers()
    timer = timers.set(5, lambda now: pytest.fail("it was cancelled"))
    timers.set(6, lambda now: None)
    timer.cancel()
    timers.run(10)
    assert len(timers) == 0


# Formulas and texts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "scale"), [(1, 1), (32, 1), (33, 2), (64, 2), (65, 3), (128, 3), (1000, 6)])
def test_push_pull_stretches_with_the_logarithm(members, scale):
    assert push_pull_scale(members) == scale
    assert members <= 32 or scale == math.ceil(math.log2(members) - 5) + 1


def test_statistics_tell_themselves_to_prometheus():
    text = prometheus_text(Statistics(probes=3, members_live=2))
    assert "swimcluster_probes_total 3\n" in text
    assert "# TYPE swimcluster_members_live gauge\nswimcluster_members_live 2\n" in text
    assert text.count("# HELP") == len(Statistics.__dataclass_fields__)
