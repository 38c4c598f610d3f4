"""A cache that had to be cleared because an output was no number: what that costs, and what it does not."""

from __future__ import annotations

import pytest

from saiserve.engines.llamacpp.job import Requeued, Started
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


def test_it_is_not_cleared_under_a_step() -> None:
    loop = make_loop()
    loop.submit(job("a", PROMPT, 3))
    step = loop.scheduler.plan(loop.now)
    assert step is not None
    with pytest.raises(RuntimeError, match="under a step"):
        loop.scheduler.start_over(loop.now)
    assert not loop.kv.calls["clear"]
    loop.scheduler.completed(loop.now, step, loop.kv.decode(step.rows), 1)
