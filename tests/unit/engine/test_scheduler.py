"""How jobs get lanes, wait, are refused and end, over the fake cache."""

from __future__ import annotations

import pytest

from saiserve.engines.llamacpp.job import Started
from saiserve.engines.llamacpp.kv import Family
from tests.fakes.engine_loop import FAMILIES, job, make_hosted, make_loop


@pytest.mark.parametrize("family", FAMILIES)
def test_one_job_runs_to_its_end(family: Family) -> None:
    loop = make_hosted(family)
    loop.submit(job("a", range(100), 5))
    loop.run()
    assert loop.ended == {"a": "finished"}
    assert len(loop.answers["a"]) == 5
    assert loop.progress["a"][-1] == 100
    assert loop.scheduler.load().busy == 0


def test_jobs_beyond_the_lanes_wait_and_beyond_the_queue_are_refused_with_a_wait() -> None:
    loop = make_loop(lanes=2, queue_max=3, prefill_rate=300.0, decode_rate=100.0)
    refusals = [loop.submit(job(f"j{index}", range(index * 50, index * 50 + 30), 5)) for index in range(3)]
    assert refusals == [None] * 3
    loop.turn()
    assert (loop.scheduler.load().busy, loop.scheduler.load().queued) == (2, 1)
    loop.submit(job("q2", [1] * 30))
    loop.submit(job("q3", [2] * 30))
    refusal = loop.submit(job("q4", [3] * 30))
    assert refusal is not None
    assert refusal.wait_s > 0
    loop.run()
    assert len(loop.ended) == 5


def test_the_wait_told_to_a_refused_job_is_near_the_truth() -> None:
    loop = make_loop(lanes=2, queue_max=20, hot_cells_max=0)
    for index in range(8):
        loop.submit(job(f"warm{index}", range(index * 50, index * 50 + 30), 20))
    loop.run()
    for index in range(22):
        loop.submit(job(f"j{index}", range(9000 + index * 50, 9000 + index * 50 + 30), 20))
        if index == 1:
            loop.turn()
    refusal = loop.submit(job("extra", [5] * 30, 20))
    assert refusal is not None
    asked_at = loop.now
    while "j21" not in loop.started:
        loop.turn()
    waited_s = (loop.now - asked_at) / 1e9
    assert 0.5 * waited_s <= refusal.wait_s <= 2 * waited_s


def test_higher_priority_goes_first_and_resumed_work_before_all() -> None:
    loop = make_loop(lanes=1)
    loop.submit(job("first", range(30), 3))
    loop.turn()
    loop.submit(job("low", range(100, 130), 3, priority=-5))
    loop.submit(job("normal", range(200, 230), 3))
    loop.submit(job("high", range(300, 330), 3, priority=50))
    loop.submit(job("resumed", range(400, 430), 3, prompt_tokens=25))
    loop.run()
    order = [notice.job_id for notice in loop.notices if isinstance(notice, Started)]
    assert order == ["first", "resumed", "high", "normal", "low"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cancelled_job_leaves_at_once_and_its_prefix_stays(family: Family) -> None:
    loop = make_hosted(family)
    loop.submit(job("a", range(400), 50))
    loop.turn()
    loop.turn(cancel_in_flight="a")
    assert loop.scheduler.load().busy == 0
    assert loop.turn() is None
    loop.submit(job("b", range(400), 3))
    loop.run()
    assert loop.cached("b") == 128


def test_cancelling_the_leader_lets_a_waiting_job_go_on() -> None:
    loop = make_loop()
    loop.submit(job("leader", range(400), 50))
    loop.submit(job("waits", [*range(390), 7], 3))
    loop.turn()
    assert "waits" not in loop.started
    loop.cancel("leader")
    loop.run()
    assert loop.ended["waits"] == "finished"
    assert loop.cached("waits") == 64
