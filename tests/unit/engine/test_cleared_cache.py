"""A cache that had to be cleared because an output was no number: what that costs, and what it does not."""

from __future__ import annotations

import pytest

from saiserve.engines.llamacpp.job import Requeued, Spoilt, Started
from saiserve.engines.llamacpp.kv import Family
from saiserve.engines.llamacpp.scheduler import RESTARTS_MAX
from tests.fakes.engine_checks import check_everything
from tests.fakes.engine_loop import FAMILIES, job, make_hosted, make_loop

PROMPT = range(60)


@pytest.mark.parametrize("speculates", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_cleared_cache_costs_running_jobs_time_and_no_token(family: Family, speculates: bool) -> None:
    loop = make_hosted(family, lanes=2, speculates=speculates)
    loop.submit(job("idle", range(500, 560), 2))
    loop.run()
    for name in ("a", "b", "waits"):
        loop.submit(job(name, [*PROMPT, ord(name[0])], 30))
    for _ in range(6):
        loop.turn()
    loop.scheduler.start_over(loop.now)
    loop.check()
    check_everything(loop)
    assert loop.kv.calls["clear"] == 1
    assert not loop.kv.sequences_used
    assert not loop.scheduler.held(), "not in host memory either"
    loop.run()
    assert {loop.ended[name] for name in ("a", "b", "waits")} == {"finished"}
    assert {len(loop.answers[name]) for name in ("a", "b", "waits")} == {30}
    assert sum(isinstance(notice, Requeued) for notice in loop.notices) == 2
    assert [notice.job_id for notice in loop.notices if isinstance(notice, Started) and notice.again] == ["a", "b"]
    check_everything(loop)


@pytest.mark.parametrize(("adapter", "end"), [("strong", "spoilt"), ("", "finished")])
def test_only_a_job_with_adapters_is_not_sent_back_for_ever(adapter: str, end: str) -> None:
    loop = make_loop(batch_max=16)
    loop.submit(job("a", range(2, 200), 5, adapter=adapter, isolation=adapter))
    for _ in range(RESTARTS_MAX):
        loop.turn()
        loop.scheduler.start_over(loop.now)
        loop.check()
        assert "a" not in loop.ended
    loop.turn()
    loop.submit(job("b", PROMPT, 5))
    loop.scheduler.start_over(loop.now)
    loop.run()
    assert loop.ended == {"a": end, "b": "finished"}


def test_a_token_drawn_between_them_makes_it_another_matter() -> None:
    loop = make_loop(batch_max=16)
    loop.submit(job("a", range(2, 20), 8, adapter="sound", isolation="sound"))
    while "a" not in loop.ended:
        drawn = len(loop.answers["a"])
        while len(loop.answers["a"]) == drawn and "a" not in loop.ended:
            loop.turn()
        loop.scheduler.start_over(loop.now)
    assert loop.ended == {"a": "finished"}


def test_what_another_has_failed_for_counts_against_nobody() -> None:
    loop = make_loop(batch_max=16)
    loop.submit(job("a", range(2, 200), 5, adapter="sound", isolation="sound"))
    for _ in range(RESTARTS_MAX + 2):
        loop.turn()
        loop.scheduler.start_over(loop.now, is_explained=True)
    loop.run()
    assert loop.ended == {"a": "finished"}


def test_adapters_are_under_suspicion_until_a_token_is_drawn() -> None:
    loop = make_loop(batch_max=16)
    scheduler = loop.scheduler
    loop.submit(job("base", PROMPT, 20))
    loop.submit(job("a", range(2, 60), 20, adapter="A", isolation="A"))
    assert scheduler.suspects == set(), "nothing runs"
    while not loop.scheduler._streams["a"].ready:
        assert scheduler.suspects == set(), "it has a lane, and computed nothing"
        loop.turn()
    assert scheduler.suspects == {"A"}
    while not loop.answers["a"]:
        loop.turn()
    assert scheduler.suspects == set()
    loop.submit(job("b", range(500, 700), 20, adapter="B", isolation="B"))
    for _ in range(RESTARTS_MAX + 1):
        while scheduler.suspects != {"B"}:
            loop.turn()
        scheduler.start_over(loop.now)
    loop.run()
    assert loop.ended == {"base": "finished", "a": "finished", "b": "spoilt"}
    (spoilt,) = (notice for notice in loop.notices if isinstance(notice, Spoilt))
    assert spoilt == Spoilt("b", frozenset({"B"}))


def test_all_under_suspicion_are_told_of_each_other() -> None:
    loop = make_loop(batch_max=16)
    for name in ("a", "b"):
        loop.submit(job(name, range(2, 200), 5, adapter=name, isolation=name))
    for _ in range(RESTARTS_MAX + 1):
        while loop.scheduler.suspects != {"a", "b"}:
            loop.turn()
        loop.scheduler.start_over(loop.now)
    loop.turn()
    spoilt = [notice for notice in loop.notices if isinstance(notice, Spoilt)]
    assert spoilt == [Spoilt("a", frozenset({"a", "b"})), Spoilt("b", frozenset({"a", "b"}))]


def test_what_waits_in_its_lane_is_not_blamed() -> None:
    loop = make_loop(batch_max=16)
    for name in ("a", "b"):
        loop.submit(job(name, range(2, 200), 5, adapter=name, isolation=name))
    for _ in range(RESTARTS_MAX + 1):
        loop.turn()
        assert loop.scheduler.load().busy == 2
        loop.scheduler.start_over(loop.now)
    loop.run()
    assert loop.ended == {"a": "spoilt", "b": "finished"}
    assert [notice for notice in loop.notices if isinstance(notice, Spoilt)] == [Spoilt("a", frozenset("a"))]


def test_rows_that_another_computed_are_not_its_own() -> None:
    loop = make_loop(lanes=2)
    loop.submit(job("first", range(2, 60), 5, adapter="A", isolation="A"))
    loop.run()
    loop.submit(job("base", range(100, 150), 5))
    loop.submit(job("next", [*range(2, 60), 7], 5, adapter="A", isolation="A"))
    loop.turn()
    assert loop.scheduler._streams["next"].ready == loop.cached("next") > 0
    assert loop.scheduler.suspects == set()


def test_who_is_computed_anew_is_under_suspicion_anew() -> None:
    loop = make_loop(batch_max=16)
    loop.submit(job("a", range(2, 60), 40, adapter="A", isolation="A"))
    while len(loop.answers["a"]) < 3:
        loop.turn()
    assert loop.scheduler.suspects == set()
    loop.scheduler.start_over(loop.now)
    loop.turn()
    assert loop.scheduler.suspects == {"A"}
    loop.scheduler.start_over(loop.now)
    while len(loop.answers["a"]) < 4:
        loop.turn()
    assert loop.scheduler.suspects == set()
    for _ in range(RESTARTS_MAX + 1):
        loop.scheduler.start_over(loop.now)
        loop.turn()
        assert "a" not in loop.ended, "a token was drawn since"
    loop.scheduler.start_over(loop.now)
    loop.run()
    assert loop.ended == {"a": "spoilt"}


def test_it_is_not_cleared_under_a_step() -> None:
    loop = make_loop()
    loop.submit(job("a", PROMPT, 3))
    step = loop.scheduler.plan(loop.now)
    assert step is not None
    with pytest.raises(RuntimeError, match="under a step"):
        loop.scheduler.start_over(loop.now)
    assert not loop.kv.calls["clear"]
    loop.scheduler.completed(loop.now, step, loop.kv.decode(step.rows), 1)
