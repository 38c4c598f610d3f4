"""Guesses from prompt and answer change how many steps an answer takes, and nothing else."""

from __future__ import annotations

from array import array

import pytest

from saiserve.engines.llamacpp.kv import IMAGE_IDS_FIRST, Family
from saiserve.engines.llamacpp.lookup import DRAFT_FIRST, DRAFT_MAX, Lookup
from tests.fakes.engine_checks import check_everything
from tests.fakes.engine_loop import Loop, job, make_loop, next_token

PROMPT = list(range(40))


def echo(ids: tuple[int, ...]) -> int:
    """Says the prompt again and again."""
    return ids[-len(PROMPT)]


def forgetful(ids: tuple[int, ...]) -> int:
    """Echoes, but not for long."""
    return ids[-len(PROMPT)] if len(ids) % 11 else next_token(ids)


def run(family: Family, model: object, *, speculates: bool, answer: int = 60, **config: object) -> Loop:
    loop = make_loop(family, speculates=speculates, **config)
    loop.model = model  # type: ignore[assignment]
    loop.submit(job("a", PROMPT, answer))
    while "a" not in loop.ended:
        loop.turn()
    check_everything(loop)
    return loop


@pytest.mark.parametrize("family", [Family.FULL, Family.WINDOW])
@pytest.mark.parametrize("model", [echo, forgetful, next_token])
def test_the_answer_is_the_same_in_fewer_steps(family: Family, model: object) -> None:
    plain, guessed = run(family, model, speculates=False), run(family, model, speculates=True)
    assert guessed.answers["a"] == plain.answers["a"]
    counters = guessed.scheduler.counters()
    assert counters["decode_tokens"] == plain.scheduler.counters()["decode_tokens"] == 59
    if model is echo:
        assert len(guessed.steps) < len(plain.steps) / 4
        assert counters["draft_hits"] == counters["drafted"] > 50
    elif model is forgetful:
        assert len(guessed.steps) < len(plain.steps)
        assert 0 < counters["draft_hits"] < counters["drafted"]
    else:
        assert len(guessed.steps) == len(plain.steps)


def test_recurrent_states_cannot_go_back_so_nothing_is_guessed() -> None:
    assert run(Family.RECURRENT, echo, speculates=True).scheduler.counters()["drafted"] == 0


def test_two_streams_guess_nothing() -> None:
    loop = make_loop(speculates=True)
    loop.model = echo
    for name in "ab":
        loop.submit(job(name, [*PROMPT[:20], *PROMPT[:20]], 30))
    loop.run()
    assert loop.scheduler.counters()["drafted"] == 0


@pytest.mark.parametrize("answer", [1, 2, 3, 20])
def test_no_more_is_guessed_than_the_answer_may_have(answer: int) -> None:
    loop = run(Family.FULL, echo, speculates=True, answer=answer)
    assert len(loop.answers["a"]) == answer
    assert max(len(step.rows) for step in loop.steps[1:] or loop.steps) <= max(answer, len(PROMPT))


def test_a_cancel_amid_guesses_leaves_what_is_sure() -> None:
    loop = make_loop(speculates=True)
    loop.model = echo
    loop.submit(job("a", PROMPT, 200))
    while loop.scheduler.counters()["drafted"] == 0:
        loop.turn()
    assert len(loop.steps[-1].rows) > 1
    loop.turn(cancel_in_flight="a")
    check_everything(loop)


def test_a_full_cache_is_filled_to_its_end_all_the_same() -> None:
    loop = run(Family.FULL, echo, speculates=True, answer=400, cells=128)
    assert loop.ended["a"] == "out of room"
    assert len(loop.answers["a"]) == len(run(Family.FULL, echo, speculates=False, answer=400, cells=128).answers["a"])


def test_lookup_finds_what_followed_and_learns_how_far_to_go() -> None:
    lookup = Lookup()
    tokens = array("i", [*range(100), 5, 6, 7])
    assert lookup.propose(tokens, 50) == tuple(range(8, 8 + DRAFT_FIRST))
    for _ in range(6):
        lookup.judge(len(tokens), 3, 3)
    assert lookup.propose(tokens, 50) == tuple(range(8, 8 + DRAFT_MAX))
    assert lookup.propose(tokens, 2) == (8, 9)
    lookup.judge(len(tokens), 9, 0)
    assert lookup.propose(tokens, 50) == ()
    assert lookup.propose(array("i", [1, 2]), 5) == ()


def test_a_guess_ends_where_an_image_begins() -> None:
    image = range(IMAGE_IDS_FIRST, IMAGE_IDS_FIRST + 4)
    lookup = Lookup()
    assert lookup.propose(array("i", [5, 6, 7, 8, *image, 9, 5, 6, 7]), 50) == (8,)
    assert lookup.propose(array("i", [5, 6, 7, 8, *image, 9, 5, 6, 7, 8]), 50) == ()
