"""A request alone on the engine is computed alike each time: from the first cell on, and a prompt's end only once."""

from __future__ import annotations

import pytest

from saiserve.engines.llamacpp.job import Job
from saiserve.engines.llamacpp.kv import Family
from tests.fakes.engine_checks import check_everything
from tests.fakes.engine_loop import Loop, job, make_loop


def make(family: Family = Family.FULL, **config: object) -> Loop:
    return make_loop(family, **{"host_bytes_max": 1 << 24, "park_after_s": 0.5, **config})  # type: ignore[arg-type]


def ask(loop: Loop, name: str, tokens: list[int], answer: int = 4, **more: object) -> list[int]:
    """One job, alone, to its end; its ids, answer included."""
    loop.submit(job(name, tokens, answer, **more))
    finish(loop, name)
    return [*tokens, *loop.answers[name]]


def finish(loop: Loop, *names: str) -> None:
    for _ in range(1_000):
        if all(name in loop.ended for name in names):
            check_everything(loop)
            return
        loop.turn()
    raise AssertionError(f"{names} do not end")


def cells_of(loop: Loop, sequence: int) -> list[int]:
    return [cell for _, cell in sorted(loop.kv.full.of[sequence].items())]


def lies_straight(loop: Loop) -> bool:
    """Whether the only sequence in the cache lies in order from the first cell on."""
    ((sequence, held),) = loop.scheduler._cache.held.items()
    return cells_of(loop, sequence) == list(range(held.ready))


def test_what_starts_alone_lies_from_the_first_cell_on_whatever_was_there_before() -> None:
    loop = make()
    ask(loop, "other", list(range(900, 950)))
    for name in ("first", "again"):
        ask(loop, name, list(range(100)))
        assert lies_straight(loop)
    ask(loop, "branch", [*range(60), *range(500, 540)])
    assert loop.cached("branch") == 60
    assert lies_straight(loop)


def test_the_next_turn_goes_on_in_place_without_moving_anything() -> None:
    loop = make()
    history = ask(loop, "turn 1", list(range(100)))
    ask(loop, "turn 2", [*history, *range(700, 720)])
    counters = loop.scheduler.counters()
    assert counters["adoptions"] == 1
    assert counters["moves_to_host"] == counters["moves_from_host"] == 0
    assert lies_straight(loop)


def test_a_sequence_that_had_company_is_laid_anew() -> None:
    loop = make()
    for name, first in (("a", 0), ("b", 300)):
        loop.submit(job(name, list(range(first, first + 50)), 30))
    finish(loop, "a", "b")
    ask(loop, "turn 2", [*range(50), *loop.answers["a"], 7, 8])
    assert loop.cached("turn 2") == 79
    assert lies_straight(loop)


@pytest.mark.parametrize("config", [{"park_after_s": None}, {"host_bytes_max": 0}, {"host_bytes_max": 400}])
def test_nothing_is_lost_where_it_could_not_move(config: dict[str, object]) -> None:
    loop = make(**config)
    ask(loop, "a", list(range(100)))
    ask(loop, "b", list(range(500, 600)))
    assert loop.scheduler.counters()["idle_evictions"] == 0
    ask(loop, "a again", list(range(100)))
    assert loop.cached("a again") == 99


def keyed(name: str, tokens: list[int], answer: int = 4) -> Job:
    return job(name, tokens, answer, end_key=repr(tokens).encode())


@pytest.mark.parametrize("family", [Family.FULL, Family.WINDOW])
def test_the_same_prompt_again_computes_nothing_before_its_first_token(family: Family) -> None:
    loop = make(family)
    prompt = list(range(100))
    ask(loop, "first", prompt, end_key=b"prompt")
    computed = loop.kv.decoded
    ask(loop, "again", prompt, end_key=b"prompt")
    assert loop.cached("again") == 100
    assert loop.kv.decoded - computed == 3  # of four tokens drawn the last is never computed
    assert loop.answers["again"] == loop.answers["first"]


@pytest.mark.parametrize("family", list(Family))
def test_of_equal_prompts_at_once_one_is_computed(family: Family) -> None:
    loop = make(family)
    names = [f"choice {number}" for number in range(4)]
    prompt = list(range(7))
    for name in names:
        loop.submit(keyed(name, prompt))
    finish(loop, *names)
    assert loop.kv.decoded == 7 + 4 * 3
    assert len({tuple(loop.answers[name]) for name in names}) == 1
    assert loop.scheduler.counters()["waits_for_prefix"] == 3


def test_a_known_end_whose_prefix_is_gone_is_computed_anew() -> None:
    loop = make(host_bytes_max=0, park_after_s=None, cells=128)
    prompt = list(range(60))
    ask(loop, "first", prompt, end_key=b"prompt")
    ask(loop, "other", list(range(500, 620)))
    ask(loop, "again", prompt, end_key=b"prompt")
    assert loop.cached("again") == 0
    assert loop.answers["again"] == loop.answers["first"]


def test_whoever_waits_for_an_equal_prompt_computes_it_when_the_first_is_cancelled() -> None:
    loop = make(batch_max=16)
    prompt = list(range(60))
    for name in ("first", "second"):
        loop.submit(keyed(name, prompt))
    loop.turn()
    loop.cancel("first")
    finish(loop, "second")
    assert len(loop.answers["second"]) == 4
