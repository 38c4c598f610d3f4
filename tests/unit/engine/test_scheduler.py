"""What the scheduler does with jobs, batches and lanes, over the fake cache."""

from __future__ import annotations

from itertools import pairwise

import pytest

from saiserve.engines.llamacpp.job import Requeued, Started, Step
from saiserve.engines.llamacpp.kv import DecodeOutcome, Family
from tests.fakes.engine_loop import FAMILIES, job, make_hosted, make_loop, turns

SYSTEM = list(range(450))


@pytest.mark.parametrize("family", FAMILIES)
def test_one_job_runs_to_its_end(family: Family) -> None:
    loop = make_hosted(family)
    loop.submit(job("a", range(100), 5))
    loop.run()
    assert loop.ended == {"a": "finished"}
    assert len(loop.answers["a"]) == 5
    assert loop.progress["a"][-1] == 100
    assert loop.scheduler.load().busy == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_sixteen_at_once_behind_one_system_prompt_prefill_it_once(family: Family) -> None:
    loop = make_hosted(family, batch_max=512)
    for index in range(16):
        loop.submit(job(f"j{index}", [*SYSTEM, *range(600 + 10 * index, 600 + 10 * index + 10)], 8))
    loop.run()
    assert set(loop.ended.values()) == {"finished"}
    assert loop.scheduler.counters()["prefill_tokens"] == 450 + 16 * 10
    assert sorted(loop.cached(f"j{index}") for index in range(16)) == [0, *[450] * 15]


@pytest.mark.parametrize("family", FAMILIES)
def test_identical_prompts_share_all_but_the_last_token(family: Family) -> None:
    loop = make_hosted(family)
    for index in range(4):
        loop.submit(job(f"n{index}", range(200), 3))
    loop.run()
    assert loop.scheduler.counters()["prefill_tokens"] == 200 + 3


@pytest.mark.parametrize("family", FAMILIES)
def test_the_next_turn_of_a_conversation_goes_on_where_the_last_ended(family: Family) -> None:
    loop = make_hosted(family)
    first = list(range(120))
    loop.submit(job("t1", first, 10))
    loop.run()
    history = [*first, *loop.answers["t1"]]
    loop.submit(job("t2", [*history, *range(300, 340)], 10))
    loop.run()
    assert loop.cached("t2") == len(history) - 1  # the last token drawn was never computed
    assert loop.scheduler.counters()["adoptions"] == 1
    assert loop.scheduler.counters()["gate_refusals"] == 0


@pytest.mark.parametrize("family", [Family.FULL, Family.WINDOW])
def test_a_branch_reuses_the_prefix_however_long_ago_the_window_passed(family: Family) -> None:
    loop = make_hosted(family, cells=1100, hot_cells_max=10_000)
    loop.submit(job("long", range(300), 40))
    loop.run()
    loop.submit(job("between", range(100, 400), 40, isolation="x"))
    loop.run()
    loop.submit(job("other", range(5000, 5300), 40))  # would take cells outside the window were they not pinned
    loop.run()
    loop.submit(job("branch", [*range(50), *range(900, 950)], 4))
    loop.run()
    assert loop.cached("branch") == 50
    assert loop.scheduler.counters()["gate_refusals"] == 0


def test_the_gate_refuses_a_source_whose_window_cells_were_lost() -> None:
    loop = make_hosted(Family.WINDOW)
    loop.submit(job("long", range(300), 40))
    loop.run()
    assert loop.kv.windowed is not None
    loop.kv.windowed.remove(0, 0, 100)
    loop.submit(job("branch", [*range(50), *range(900, 950)], 4))
    loop.submit(job("tail", [*range(200), *range(900, 950)], 4))
    loop.run()
    assert loop.scheduler.counters()["gate_refusals"] == 1
    assert loop.ended["branch"] == "finished"


def test_a_running_sequence_is_shared_while_it_generates() -> None:
    loop = make_loop()
    loop.submit(job("a", range(100), 100))
    while not loop.answers["a"]:
        loop.turn()
    loop.submit(job("b", [*range(80), *range(900, 910)], 4))
    loop.run()
    assert loop.cached("b") == 80


@pytest.mark.parametrize("family", FAMILIES)
def test_isolated_keys_share_nothing(family: Family) -> None:
    loop = make_hosted(family)
    loop.submit(job("a", range(100), 3, isolation="x"))
    loop.submit(job("b", range(100), 3, isolation="y"))
    loop.run()
    loop.submit(job("c", range(100), 3, isolation="z"))
    loop.submit(job("d", range(100), 3, isolation="y"))
    loop.run()
    assert [loop.cached(name) for name in "abc"] == [0, 0, 0]
    assert loop.scheduler.counters()["prefill_tokens"] >= 300


def test_resume_tokens_are_prefilled_and_not_reported_as_cached_prompt() -> None:
    loop = make_loop()
    loop.submit(job("a", range(100), 10))
    loop.run()
    answer = loop.answers["a"][:6]
    loop.submit(job("again", [*range(100), *answer], 4, prompt_tokens=100))
    loop.run()
    assert loop.cached("again") == 100
    assert [*answer, *loop.answers["again"]] == loop.answers["a"]


def test_streams_that_run_keep_their_pace_while_a_long_prompt_prefills() -> None:
    loop = make_loop(cells=8000, batch_max=512)
    loop.submit(job("stream", range(50), 400))
    while len(loop.answers["stream"]) < 20:
        loop.turn()
    before = len(loop.step_ms)
    loop.submit(job("long", range(2000, 4000), 2))
    while "long" not in loop.answers:
        loop.turn()
    during = loop.step_ms[before:]
    assert max(during) <= 300
    assert sum(during) / 1000 < 2000 / 300 / 0.7, "prefill must not starve either"


def test_prompts_and_streams_apart_take_turns_and_no_step_mixes_them() -> None:
    loop = make_loop(cells=8000, batch_max=512, apart=True, prefill_rate=300.0)
    loop.submit(job("stream", range(50), 100))
    while len(loop.answers["stream"]) < 20:
        loop.turn()
    before, said = len(loop.steps), len(loop.answers["stream"])
    loop.submit(job("long", range(1000, 1640), 2))
    while not loop.answers["long"]:
        loop.turn()
    kinds = [{part.is_prefill for part in step.parts} for step in loop.steps[before:]]
    assert all(len(kind) == 1 for kind in kinds), "a step had both"
    assert all({True, False} == one | other for one, other in pairwise(kinds)), "one had two turns running"
    assert len(loop.answers["stream"]) - said == len(kinds) // 2
    pieces = [len(step.rows) for step in loop.steps[before:-1] if step.parts[0].is_prefill]
    assert pieces[0] == 64, "a block, though the first guess of the rate gives 52"
    assert 70 <= max(pieces) <= 75, "0.25 s at 300 tokens per second, once that is learned"
    loop.run()
    assert loop.ended == {"stream": "finished", "long": "finished"}


def test_a_prompt_that_finds_no_cell_does_not_stop_the_streams_beside_which_it_would_be_read() -> None:
    loop = make_loop(cells=120, lanes=2, batch_max=64, apart=True)
    loop.submit(job("first", range(60), 40))
    loop.submit(job("second", range(100, 140), 3))
    loop.run()
    assert loop.ended == {"first": "finished", "second": "finished"}


def test_a_crowd_of_prompts_may_lengthen_the_step_to_four_times_the_budget() -> None:
    loop = make_loop(cells=8000, batch_max=512)
    loop.submit(job("stream", range(50), 300))
    while len(loop.answers["stream"]) < 20:
        loop.turn()
    before = len(loop.step_ms)
    for index in range(6):
        loop.submit(job(f"j{index}", range(1000 * index + 1000, 1000 * index + 1400), 2))
    loop.run()
    assert 900 < max(loop.step_ms[before:]) < 1030


def test_a_short_prompt_does_not_wait_for_a_long_one_that_came_first() -> None:
    loop = make_loop(cells=8000, batch_max=64)
    loop.submit(job("long", range(3000), 2))
    for _ in range(4):
        loop.turn()
    loop.submit(job("short", range(5000, 5040), 2))
    loop.turn()
    loop.turn()
    assert loop.answers["short"]
    assert not loop.answers["long"]


def test_short_prompts_without_end_do_not_starve_a_long_one() -> None:
    loop = make_loop(cells=8000, batch_max=64, hot_cells_max=0)
    loop.submit(job("long", range(1500), 1))
    count = 0
    while "long" not in loop.ended:
        if loop.scheduler.load().queued < 2:
            loop.submit(job(f"s{count}", [7000 + count, *range(5000, 5060)], 1, isolation=str(count)))
            count += 1
        loop.turn()
        assert count < 400


def test_whole_batches_are_prefilled_when_nothing_streams() -> None:
    loop = make_loop(cells=8000, batch_max=512)
    loop.submit(job("long", range(2000), 2))
    loop.turn()
    assert len(loop.steps[0].rows) == 512


def test_a_step_never_has_more_rows_than_the_batch() -> None:
    loop = make_loop(cells=8000, batch_max=32)
    for index in range(16):
        loop.submit(job(f"j{index}", range(index * 100, index * 100 + 90), 12))
    loop.run()
    assert max(len(step.rows) for step in loop.steps) <= 32


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


def test_embeddings_run_between_steps_with_a_fifth_of_the_time() -> None:
    loop = make_loop()
    assert loop.scheduler.may_embed(loop.now, 50)
    loop.scheduler.embedding_done(loop.now, 10_000_000)
    loop.submit(job("a", range(100), 50))
    loop.turn()
    loop.scheduler.embedding_done(loop.now, 1_000_000_000)
    assert not loop.scheduler.may_embed(loop.now + 3_900_000_000, 50)
    assert loop.scheduler.may_embed(loop.now + 4_100_000_000, 50)


# Faults


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


def test_what_would_be_cached_is_told_before_a_job_is_submitted() -> None:
    loop = make_loop()
    asked = job("b", [*range(80), *range(500, 520), 1, 2, 3], 5, prompt_tokens=100)
    assert loop.scheduler.cached_tokens(asked) == 0
    loop.submit(job("a", [*range(80), *range(500, 520), 1, 2, 3, 4], 5))
    loop.run()
    assert loop.scheduler.cached_tokens(asked) == 100, "resume tokens are not prompt"
    assert loop.scheduler.cached_tokens(job("c", range(60))) == 59
    loop.submit(asked)
    assert loop.scheduler.load().queued_tokens == 1
