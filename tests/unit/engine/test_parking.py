"""When idle prefixes leave the KV cache though there is room: cells there slow every step on a CPU."""

from __future__ import annotations

import pytest

from saiserve.engines.llamacpp.kv import Family
from tests.fakes.engine_loop import MS, Loop, job, make_loop

AFTER_S = 0.5
AFTER_NS = int(AFTER_S * 1000 * MS)


def make(family: Family = Family.FULL, **config: object) -> Loop:
    return make_loop(family, **{"host_bytes_max": 1 << 24, "park_after_s": AFTER_S, **config})  # type: ignore[arg-type]


def run_one(loop: Loop, name: str = "a", tokens: int = 200) -> list[int]:
    """One job to its end; its ids, answer included."""
    prompt = list(range(tokens))
    loop.submit(job(name, prompt, 4))
    while name not in loop.ended:
        loop.turn()
    return [*prompt, *loop.answers[name]]


def test_an_idle_prefix_stays_for_a_quick_return_and_leaves_after_a_rest() -> None:
    loop = make()
    run_one(loop)
    loop.now += AFTER_NS - MS
    assert loop.turn() is None
    assert loop.scheduler.counters()["cells_idle"] > 0
    assert loop.scheduler.has_chores
    assert not loop.scheduler.has_moved
    loop.now += MS
    assert loop.turn() is None
    assert loop.scheduler.has_moved
    assert loop.scheduler.counters()["cells_used"] == 0
    assert not loop.scheduler.has_chores


def test_what_left_comes_back_whole() -> None:
    loop = make()
    history = run_one(loop)
    loop.now += AFTER_NS
    loop.turn()
    loop.submit(job("b", [*history, *range(900, 910)], 2))
    while "b" not in loop.ended:
        loop.turn()
    assert loop.cached("b") == len(history) - 1
    assert loop.scheduler.counters()["moves_from_host"] == 1


@pytest.mark.parametrize("config", [{"park_after_s": None}, {"host_bytes_max": 0}])
def test_without_a_rest_time_or_host_memory_idle_prefixes_stay(config: dict[str, object]) -> None:
    loop = make(**config)
    run_one(loop)
    loop.now += 100 * AFTER_NS
    assert loop.turn() is None
    assert loop.scheduler.counters()["cells_idle"] > 0
    assert not loop.scheduler.has_chores


@pytest.mark.parametrize("family", [Family.WINDOW, Family.RECURRENT])
def test_only_full_attention_parks_early_because_others_lose_places_to_branch(family: Family) -> None:
    loop = make(family)
    run_one(loop)
    loop.now += 100 * AFTER_NS
    assert loop.turn() is None
    assert loop.scheduler.counters()["cells_idle"] > 0
    assert not loop.scheduler.has_chores


def test_parking_early_never_drops_what_host_memory_holds() -> None:
    loop = make(host_bytes_max=600)
    run_one(loop, "a", 100)
    loop.now += AFTER_NS
    loop.turn()
    first = loop.scheduler.counters()["host_bytes"]
    assert 300 < first < 600
    loop.submit(job("b", range(5_000, 5_100), 4))
    while "b" not in loop.ended:
        loop.turn()
    loop.now += 100 * AFTER_NS
    loop.turn()
    assert loop.scheduler.counters()["host_bytes"] == first
    assert loop.scheduler.counters()["host_evictions"] == 0
    assert loop.scheduler.counters()["cells_idle"] > 0
    assert not loop.scheduler.has_chores
