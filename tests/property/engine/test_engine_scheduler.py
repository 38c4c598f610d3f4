"""Random lives of a scheduler over the fake cache, which fails at the first row computed on a wrong prefix."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saiserve.engines.llamacpp.kv import Family
from tests.fakes.engine_checks import check_everything
from tests.fakes.engine_loop import Loop, job, make_loop

FAMILIES = [Family.FULL, Family.WINDOW, Family.RECURRENT]


def play(loop: Loop, rng: random.Random, rounds: int) -> None:
    """Submit, cancel and step at random; then let everything end."""
    bases = [[rng.randrange(50) for _ in range(rng.randrange(5, 90))] for _ in range(4)]
    spoken: list[list[int]] = []
    for count in range(rounds):
        kind = rng.random()
        if kind < 0.35:
            pool = bases + spoken[-6:]
            start = rng.choice(pool)
            prompt = start[: rng.randrange(1, len(start) + 1)] + [rng.randrange(50) for _ in range(rng.randrange(20))]
            cuts = sorted({rng.randrange(1, len(prompt) + 1) for _ in range(3)})
            loop.submit(
                job(
                    f"j{count}",
                    prompt,
                    rng.choice([1, 2, 5, 20, 60]),
                    priority=rng.choice([0, 0, 0, 5, -5]),
                    isolation=rng.choice(["", "", "", "other"]),
                    boundaries=tuple(cuts),
                    prompt_tokens=rng.randrange(1, len(prompt) + 1),
                )
            )
        elif kind < 0.42 and loop.jobs:
            loop.cancel(rng.choice(list(loop.jobs)))
        elif kind < 0.45:
            loop.kv.no_room_next = 1
        elif kind < 0.46:
            loop.kv.reject_token = rng.choice([None, 7])
        else:
            in_flight = rng.choice(list(loop.jobs)) if loop.jobs and rng.random() < 0.05 else None
            loop.turn(cancel_in_flight=in_flight)
        done = [name for name in loop.ended if name in loop.answers]
        spoken += [[*loop.jobs[name].tokens, *loop.answers.pop(name)] for name in done]
        if count % 8 == 0:
            check_everything(loop)
    loop.run()
    check_everything(loop)
    assert set(loop.ended) == set(loop.jobs), "somebody starved"
    assert loop.scheduler.load().busy == loop.scheduler.load().queued == 0


@pytest.mark.parametrize("family", FAMILIES)
@given(
    seed=st.integers(0, 2**32),
    lanes=st.integers(1, 6),
    cells=st.sampled_from([130, 200, 400, 1500]),
    host=st.sampled_from([0, 3_000, 20_000, 1 << 22]),
    hot=st.sampled_from([0, 40, 2000]),
    batch=st.sampled_from([8, 32, 64]),
)
@settings(max_examples=20)
def test_no_life_computes_on_a_wrong_prefix_loses_a_job_or_leaks_a_cell(
    family: Family, seed: int, lanes: int, cells: int, host: int, hot: int, batch: int
) -> None:
    rng = random.Random(seed)
    loop = make_loop(
        family,
        cells=cells,
        sequences=lanes + rng.choice([1, 2, 4]),
        window=rng.choice([2, 8, 16]) if family is Family.WINDOW else 0,
        lanes=lanes,
        batch_max=batch,
        host_bytes_max=host,
        hot_cells_max=hot,
        queue_max=30,
        pins=rng.random() < 0.7,
    )
    play(loop, rng, 120)
