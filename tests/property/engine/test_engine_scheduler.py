"""Random lives of a scheduler over the fake cache, which fails at the first row computed on a wrong prefix."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from saiserve.engines.llamacpp import prefix_cache
from saiserve.engines.llamacpp.kv import Family
from saiserve.engines.llamacpp.prefix_cache import PrefixCache
from saiserve.engines.llamacpp.reuse import ReuseKind
from tests.fakes import engine_checks
from tests.fakes.engine_loop import Loop, job, make_loop, next_token
from tests.fakes.kv import WrongPrefixError

FAMILIES = [Family.FULL, Family.WINDOW, Family.RECURRENT]


def says_again(ids: tuple[int, ...]) -> int:
    """A model that mostly repeats what it said seven tokens ago, so that guesses are right and wrong."""
    return ids[-7] if len(ids) >= 7 and hash(ids) % 5 else next_token(ids)


def play(loop: Loop, rng: random.Random, rounds: int, *, cells: int) -> None:
    """Submit, cancel and step at random; then let everything end."""
    bases = [[rng.randrange(50) for _ in range(rng.randrange(5, 90))] for _ in range(4)]
    spoken: list[list[int]] = []
    for count in range(rounds):
        kind = rng.random()
        if kind < 0.35:
            pool = bases + spoken[-6:]
            start = rng.choice(pool)
            prompt = start[: rng.randrange(1, len(start) + 1)] + [rng.randrange(50) for _ in range(rng.randrange(20))]
            if rng.random() < 0.2 and loop.jobs:
                prompt = list(rng.choice(list(loop.jobs.values())).tokens)
            # What could never fit is refused by whoever submits.
            prompt = prompt[: cells - 1]
            cuts = sorted({rng.randrange(1, len(prompt) + 1) for _ in range(3)})
            isolation = rng.choice(["", "", "", "other"])
            loop.submit(
                job(
                    f"j{count}",
                    prompt,
                    rng.choice([1, 2, 5, 20, 60]),
                    priority=rng.choice([0, 0, 0, 5, -5]),
                    isolation=isolation,
                    end_key=repr((prompt, isolation)).encode() if rng.random() < 0.7 else b"",
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
        elif kind < 0.465:
            loop.scheduler.start_over(loop.now)
        else:
            in_flight = rng.choice(list(loop.jobs)) if loop.jobs and rng.random() < 0.05 else None
            loop.turn(cancel_in_flight=in_flight)
        done = [name for name in loop.ended if name in loop.answers]
        spoken += [[*loop.jobs[name].tokens, *loop.answers.pop(name)] for name in done]
        if count % 8 == 0:
            engine_checks.check_everything(loop)
    loop.run()
    engine_checks.check_everything(loop)
    assert set(loop.ended) == set(loop.jobs), "somebody starved"
    assert loop.scheduler.load().busy == loop.scheduler.load().queued == 0
    loop.scheduler.start_over(loop.now)
    assert not loop.scheduler.held()
    assert loop.kv.cells_used == 0


@pytest.mark.parametrize("family", FAMILIES)
@given(
    seed=st.integers(0, 2**32),
    lanes=st.integers(1, 6),
    cells=st.sampled_from([130, 200, 400, 1500]),
    host=st.sampled_from([0, 3_000, 20_000, 1 << 22]),
    hot=st.sampled_from([0, 40, 2000]),
    batch=st.sampled_from([8, 32, 64]),
    park=st.sampled_from([None, 0.05]),
)
@settings(max_examples=20)
@example(seed=0, lanes=2, cells=130, host=3_000, hot=0, batch=8, park=None)
def test_no_life_computes_on_a_wrong_prefix_loses_a_job_or_leaks_a_cell(
    family: Family, seed: int, lanes: int, cells: int, host: int, hot: int, batch: int, park: float | None
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
        park_after_s=park,
        speculates=rng.random() < 0.5,
        apart=rng.random() < 0.5,
    )
    loop.model = rng.choice([next_token, says_again])
    play(loop, rng, 120, cells=cells)


def lives_until_wrong(family: Family, seeds: int) -> int:
    """How many of so many lives compute on a wrong prefix."""
    wrong = 0
    for seed in range(seeds):
        loop = make_loop(
            family,
            cells=200,
            sequences=8,
            window=8 if family is Family.WINDOW else 0,
            lanes=3,
            batch_max=32,
            hot_cells_max=2000,
            queue_max=30,
        )
        try:
            play(loop, random.Random(seed), 80, cells=200)
        except WrongPrefixError:
            wrong += 1
    return wrong


def test_the_fake_sees_what_happens_without_gate_and_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixCache, "_pin", lambda self, held: None)
    monkeypatch.setattr(engine_checks, "check_everything", lambda loop: None)
    with_gate = lives_until_wrong(Family.WINDOW, 12)  # not 0: a shared start can survive what follows it
    monkeypatch.setattr(prefix_cache, "passes_gate", lambda *_: True)
    assert lives_until_wrong(Family.WINDOW, 12) > max(2, with_gate)


def test_the_fake_sees_what_happens_when_a_state_is_cut_without_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "passes_gate", lambda *_: True)
    monkeypatch.setitem(prefix_cache.KINDS, Family.RECURRENT, ReuseKind.PINNED)
    assert lives_until_wrong(Family.RECURRENT, 12) > 2
