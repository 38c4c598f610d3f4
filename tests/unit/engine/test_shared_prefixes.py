"""What jobs take over from one another, and what they must not, over the fake cache."""

from __future__ import annotations

import pytest

from saiserve.engines.llamacpp.kv import Family
from tests.fakes.engine_loop import FAMILIES, job, make_hosted, make_loop

SYSTEM = list(range(450))


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
