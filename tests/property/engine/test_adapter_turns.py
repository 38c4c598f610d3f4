"""Streams of several LoRA adapters: one batch holds one of them, and nobody waits longer than the others' turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from saiserve.engines.llamacpp.adapter_turns import TURN_STEPS
from tests.fakes.engine_loop import job, make_loop

ADAPTERS = ("", "clerk", "poet")


@given(
    wanted=st.lists(
        st.tuples(st.sampled_from(ADAPTERS), st.integers(1, 150), st.integers(1, 30)), min_size=1, max_size=10
    )
)
def test_every_batch_is_of_one_adapter_and_every_job_ends(wanted: list[tuple[str, int, int]]) -> None:
    loop = make_loop(cells=4000)
    adapter_of: dict[str, str] = {}
    for number, (adapter, length, draw) in enumerate(wanted):
        name = f"j{number}"
        adapter_of[name] = adapter
        loop.submit(job(name, range_of(number, length), draw, adapter=adapter, isolation=f"{adapter}\x00"))
    loop.run()
    assert set(loop.ended.values()) == {"finished"}
    for step in loop.steps:
        assert {adapter_of[part.job_id] for part in step.parts} == {step.adapter}


@given(counts=st.lists(st.integers(1, 4), min_size=2, max_size=3))
def test_a_running_stream_waits_at_most_for_the_others_turns(counts: list[int]) -> None:
    loop = make_loop()
    for adapter, count in zip(ADAPTERS, counts, strict=False):
        for number in range(count):
            name = f"{adapter}-{number}"
            loop.submit(job(name, range_of(len(loop.jobs), 8), 60, adapter=adapter, isolation=f"{adapter}\x00"))
    last: dict[str, int] = {}
    longest = 0
    while loop.turn() is not None:
        number = len(loop.steps)
        for part in loop.steps[-1].parts:
            longest = max(longest, number - last.get(part.job_id, number))
            last[part.job_id] = number
    assert longest <= (len(counts) - 1) * TURN_STEPS + 1


def test_a_long_prompt_of_one_adapter_is_cut_for_the_streams_of_another() -> None:
    loop = make_loop(prefill_rate=300.0, decode_rate=100.0, prefill_budget_s=0.1)
    loop.submit(job("stream", range_of(0, 8), 200, adapter="poet", isolation="poet\x00"))
    for _ in range(5):
        loop.turn()
    loop.submit(job("long", range_of(1, 600), 1))
    while "long" not in loop.ended:
        loop.turn()
    prefills = [step for step in loop.steps if any(part.job_id == "long" and part.is_prefill for part in step.parts)]
    assert max(len(step.rows) for step in prefills) <= 40


def range_of(number: int, length: int) -> list[int]:
    """Ids that no other number begins with."""
    return [number, *range(length - 1)]
