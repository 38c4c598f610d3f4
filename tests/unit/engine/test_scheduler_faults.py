"""A scheduler whose cache is full, fuller than counted or damaged, whose model refuses, or who is misused."""

from __future__ import annotations

import pytest

from saiserve.engines.llamacpp.job import Requeued, Step
from saiserve.engines.llamacpp.kv import DecodeOutcome, Family
from tests.fakes.engine_loop import FAMILIES, job, make_hosted, make_loop, turns


@pytest.mark.parametrize("family", FAMILIES)
def test_when_the_cache_is_full_the_youngest_goes_back_and_all_finish(family: Family) -> None:
    loop = make_hosted(family, cells=400, lanes=4, hot_cells_max=100)
    for index in range(4):
        loop.submit(job(f"j{index}", range(1000 * index, 1000 * index + 60), 250))
    loop.run()
    assert set(loop.ended.values()) == {"finished"}
    assert {len(loop.answers[f"j{index}"]) for index in range(4)} == {250}
    assert any(isinstance(notice, Requeued) for notice in loop.notices)


def test_a_lone_job_that_fills_the_cache_ends_for_length() -> None:
    loop = make_loop(cells=100, lanes=2)
    loop.submit(job("a", range(60), 500))
    loop.run()
    assert loop.ended == {"a": "out of room"}
    assert len(loop.answers["a"]) == 41


def test_a_cache_fuller_than_counted_costs_idle_prefixes_then_places_but_no_answer() -> None:
    loop = make_loop(lanes=3)
    loop.submit(job("old", range(50), 3))
    loop.run()
    for index in range(3):
        loop.submit(job(f"j{index}", range(1000 * index, 1000 * index + 60), 10))
    loop.turn()
    loop.kv.no_room_next = 2
    loop.run()
    assert set(loop.ended.values()) == {"finished"}
    assert loop.scheduler.counters()["no_room"] == 2
    assert sum(isinstance(notice, Requeued) for notice in loop.notices) == 1


def test_a_job_the_model_refuses_is_found_and_the_others_of_its_batch_go_on() -> None:
    loop = make_loop()
    loop.kv.reject_token = 66_666
    for index in range(4):
        loop.submit(job(f"j{index}", [index * 100, 66_666 if index == 2 else 5, 6], 6))
    loop.run()
    assert loop.ended == {"j0": "finished", "j1": "finished", "j2": "broken", "j3": "finished"}


def test_misuse_is_refused_with_the_state_unchanged() -> None:
    loop = make_loop(cells=100, lanes=2)
    loop.submit(job("a", range(10)))
    with pytest.raises(ValueError, match="already"):
        loop.submit(job("a", range(10)))
    with pytest.raises(ValueError, match="no room"):
        loop.submit(job("b", range(100)))
    with pytest.raises(ValueError, match="lanes"):
        make_loop(lanes=17)
    with pytest.raises(ValueError, match="twin"):
        make_loop(Family.WINDOW, sequences=129)
    with pytest.raises(ValueError, match="max_tokens"):
        job("c", [1], 0)
    with pytest.raises(ValueError, match="prompt_tokens"):
        job("c", [1], prompt_tokens=2)
    step = loop.scheduler.plan(1)
    with pytest.raises(RuntimeError, match="completed"):
        loop.scheduler.plan(2)
    assert step is not None
    with pytest.raises(RuntimeError, match="not in flight"):
        loop.scheduler.completed(3, Step((), (), ()), DecodeOutcome.DONE, 1)
    loop.scheduler.completed(3, step, DecodeOutcome.NO_ROOM, 1)
    loop.run()
    assert loop.ended == {"a": "finished"}


def test_a_conversation_whose_window_was_lost_is_computed_anew() -> None:
    loop = make_hosted(Family.WINDOW)
    history = turns(loop, "t1", [], range(200))
    assert loop.kv.windowed is not None
    loop.kv.windowed.remove(0, 150, 205)
    loop.kv.windowed.remove(loop.kv.sequences_max, 150, 205)
    loop.kv.windowed.remove(0, 0, 150)
    turns(loop, "t2", history, range(900, 950))
    assert loop.cached("t2") == 0
    assert loop.scheduler.counters()["gate_refusals"] == 1
    assert loop.ended["t2"] == "finished"


def test_a_lone_prompt_tries_smaller_pieces_when_the_cache_is_fuller_than_counted() -> None:
    loop = make_loop()
    loop.submit(job("a", range(64), 2))
    loop.kv.no_room_next = 2
    loop.run()
    assert [len(step.rows) for step in loop.steps[:4]] == [64, 32, 16, 16]
    assert loop.ended == {"a": "finished"}


def test_a_state_that_does_not_fit_back_is_computed_instead() -> None:
    loop = make_hosted(Family.FULL, hot_cells_max=0)
    history = turns(loop, "t1", [], range(200))
    loop.kv.full.find = lambda count, find=loop.kv.full.find: None if count > 100 else find(count)  # type: ignore[method-assign,misc]
    turns(loop, "t2", history, range(900, 950))
    assert loop.cached("t2") == 0
    assert loop.ended["t2"] == "finished"


def test_words_about_unknown_or_waiting_jobs_do_no_harm() -> None:
    loop = make_loop(lanes=1)
    loop.scheduler.cancel(0, "nobody")
    loop.scheduler.finish(0, "nobody")
    loop.scheduler.sampled("nobody", 5)
    assert not loop.scheduler.wants("nobody")
    loop.submit(job("runs", range(30), 5))
    loop.submit(job("ends early", range(30), 5))
    loop.submit(job("leaves early", range(30), 5))
    loop.turn()
    loop.scheduler.finish(loop.now, "ends early")
    loop.cancel("leaves early")
    loop.run()
    assert loop.ended == {"runs": "finished", "leaves early": "cancelled"}
    assert "ends early" not in loop.started
