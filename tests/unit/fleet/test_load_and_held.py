"""Effective load, remembered prefixes and agreed homes, by example and as properties."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saiserve.engines.messages import Load
from saiserve.fleet.held import HeldPrefixes
from saiserve.fleet.load_ledger import REPLY_LAG_S, SECOND, VITALS_LAG_S, LoadLedger
from saiserve.limits import HELD_HOLDERS_MAX, HELD_S
from saiserve.routing.homes import Holder, home_order
from swimcluster.member import MemberState

S = SECOND


def busy(ledger: LoadLedger, now: int) -> float:
    return ledger.effective(now, "c").busy


def test_own_requests_count_at_once_and_until_they_end() -> None:
    ledger = LoadLedger()
    ledger.started(0, "c", 100, "1")
    ledger.started(0, "c", 50, "2")
    assert (busy(ledger, 0), ledger.effective(0, "c").queued_tokens) == (2, 150)
    ledger.finished(1 * S, "1")
    ledger.finished(1 * S, "1")
    assert busy(ledger, 1 * S) == 1
    ledger.finished(1 * S, "2")
    assert (busy(ledger, 1 * S), ledger.in_flight) == (0, 0)


@pytest.mark.parametrize("written", ["before the burst", "after the burst"])
def test_a_burst_is_counted_once_whenever_the_report_was_written(written: str) -> None:
    ledger = LoadLedger()
    ledger.report(0, "c", Load(lanes=4), lag_s=VITALS_LAG_S)
    for number in range(6):
        ledger.started(10 * S, "c", 100, str(number))
    reported = 6 if written == "after the burst" else 0
    ledger.report(10 * S + S // 2, "c", Load(lanes=4, busy=reported), lag_s=VITALS_LAG_S)
    assert busy(ledger, 11 * S) == 6


def test_the_load_of_others_is_added_to_our_own() -> None:
    ledger = LoadLedger()
    ledger.started(0, "c", 10, "mine")
    ledger.report(10 * S, "c", Load(lanes=8, busy=4, queued=2), lag_s=VITALS_LAG_S)
    assert busy(ledger, 10 * S) == 6
    ledger.finished(11 * S, "mine")
    assert busy(ledger, 11 * S) == 5


def test_an_older_report_does_not_replace_a_fresh_reply() -> None:
    ledger = LoadLedger()
    ledger.report(10 * S, "c", Load(busy=3), lag_s=REPLY_LAG_S)
    ledger.report(10 * S + S // 5, "c", Load(busy=0), lag_s=VITALS_LAG_S)
    assert busy(ledger, 11 * S) == 3
    ledger.report(12 * S, "c", Load(busy=0), lag_s=VITALS_LAG_S)
    assert busy(ledger, 12 * S) == 0


def test_requests_that_end_together_are_not_taken_for_others_by_the_last_words_about_them() -> None:
    ledger = LoadLedger()
    for number in range(4):
        ledger.started(0, "c", 10, str(number))
    for number in range(4):
        now = 5 * S + number
        ledger.finished(now, str(number))
        ledger.report(now, "c", Load(lanes=4, busy=4), lag_s=REPLY_LAG_S)
    assert busy(ledger, 6 * S) == 0


def test_reported_prefill_melts_at_the_engines_own_rate() -> None:
    ledger = LoadLedger()
    ledger.report(0, "c", Load(queued_tokens=1_000, prefill_rate=100.0), lag_s=0.0)
    assert [ledger.effective(t * S, "c").queued_tokens for t in (0, 4, 20)] == [1_000, 600, 0]


def test_another_life_of_a_node_starts_without_reports_but_own_requests_still_end() -> None:
    ledger = LoadLedger()
    ledger.started(0, "c", 10, "1")
    ledger.report(5 * S, "c", Load(busy=9), lag_s=REPLY_LAG_S)
    ledger.forget({"c", "unknown"})
    assert (busy(ledger, 5 * S), ledger.effective(5 * S, "c").is_reported) == (1, False)
    ledger.finished(6 * S, "1")
    assert busy(ledger, 6 * S) == 0


events = st.lists(
    st.tuples(
        st.integers(0, 3 * S),
        st.sampled_from(["start", "finish", "vitals", "reply"]),
        st.integers(0, 9),
    ),
    max_size=60,
)


@given(events)
def test_effective_load_never_falls_below_our_own_requests_and_returns_to_the_report(
    steps: list[tuple[int, str, int]],
) -> None:
    ledger, now, own = LoadLedger(), 0, set[str]()
    for pause, kind, number in steps:
        now += pause
        if kind == "start":
            ledger.started(now, "c", number, str(number))
            own.add(str(number))
        elif kind == "finish":
            ledger.finished(now, str(number))
            own.discard(str(number))
        else:
            lag_s = VITALS_LAG_S if kind == "vitals" else REPLY_LAG_S
            ledger.report(now, "c", Load(busy=number), lag_s=lag_s)
        assert busy(ledger, now) >= len(own) == ledger.in_flight
        assert ledger.effective(now, "c").queued_tokens >= 0
    for attempt in own:
        ledger.finished(now, attempt)
    ledger.report(now + 10 * S, "c", Load(busy=2), lag_s=VITALS_LAG_S)
    assert busy(ledger, now + 10 * S) == 2


MARKS = ((b"a", 10), (b"b", 20), (b"c", 30))


def test_the_deepest_mark_a_candidate_holds_counts() -> None:
    held = HeldPrefixes()
    held.note(0, MARKS[:2], "x")
    held.note(0, MARKS, "y")
    assert held.tokens(0, MARKS) == {"x": 20, "y": 30}
    assert held.tokens(0, ((b"other", 10),)) == {}


def test_a_miss_forgets_what_lies_deeper() -> None:
    held = HeldPrefixes()
    held.note(0, MARKS, "x")
    held.miss(MARKS, "x", cached_tokens=10)
    assert held.tokens(0, MARKS) == {"x": 10}
    held.miss(MARKS, "x")
    assert (held.tokens(0, MARKS), len(held)) == ({}, 0)


def test_memory_is_bounded_and_old_entries_are_not_believed() -> None:
    held = HeldPrefixes(marks_max=2)
    held.note(0, MARKS, "x")
    assert len(held) == 2
    assert held.tokens(int(HELD_S * S) + 1, MARKS) == {}
    for number in range(HELD_HOLDERS_MAX + 5):
        held.note(0, MARKS[:1], f"n{number}")
    assert len(held.tokens(0, MARKS[:1])) == HELD_HOLDERS_MAX


def test_a_candidate_that_began_a_new_life_holds_nothing() -> None:
    held = HeldPrefixes()
    held.note(0, MARKS, "x")
    held.note(0, MARKS[:1], "y")
    held.forget({"x"})
    assert held.tokens(0, MARKS) == {"y": 10}


HOLDERS = [Holder(f"n{number}") for number in range(8)]


def openings(count: int) -> list[bytes]:
    return [f"opening {number}".encode() for number in range(count)]


@given(st.binary(max_size=4), st.binary(max_size=4), st.permutations(HOLDERS), st.integers(1, 8))
def test_homes_do_not_depend_on_the_order_of_the_view(
    scaffold: bytes, opening: bytes, shuffled: list[Holder], count: int
) -> None:
    some = shuffled[:count]
    order = home_order(scaffold, opening, some)
    assert order == home_order(scaffold, opening, sorted(some, key=lambda h: h.name))
    assert sorted(order) == (sorted(h.name for h in some) if opening else [])


def test_a_long_shared_head_keeps_its_conversations_on_two_nodes() -> None:
    firsts = {home_order(b"head", opening, HOLDERS)[0] for opening in openings(100)}
    assert len(firsts) == 2
    seconds = {home_order(b"head", opening, HOLDERS)[1] for opening in openings(100)}
    assert firsts == seconds


def test_without_one_conversations_spread_over_all_by_declared_lanes() -> None:
    holders = [Holder("small", 4), Holder("alike", 7), Holder("large", 16)]
    firsts = collections.Counter(home_order(b"", opening, holders)[0] for opening in openings(3_000))
    assert firsts["small"] == pytest.approx(500, rel=0.2)
    assert firsts["alike"] == pytest.approx(500, rel=0.2)
    assert firsts["large"] == pytest.approx(2_000, rel=0.1)


def test_when_a_node_goes_only_its_own_conversations_move() -> None:
    for opening in openings(300):
        before = home_order(b"", opening, HOLDERS)
        gone = [Holder(h.name, state=MemberState.DEAD if h.name == "n3" else h.state) for h in HOLDERS]
        assert home_order(b"", opening, gone) == tuple(name for name in before if name != "n3")
