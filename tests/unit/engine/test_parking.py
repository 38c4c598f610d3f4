"""When idle prefixes leave the KV cache though there is room: cells there slow every step on a CPU."""

from __future__ import annotations

import pytest

from saiserve.engines.llamacpp.kv import Family
from saiserve.engines.llamacpp.parking import has_no_lane_left
from tests.fakes.engine_checks import check_everything
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


@pytest.mark.parametrize(
    ("running", "waiting", "lanes", "is_full"),
    [
        (3, 0, 4, False),
        (4, 0, 4, True),
        (3, 1, 4, True),
        (2, 1, 4, False),
        (1, 3, 4, True),
        (0, 9, 4, False),
        (1, 0, 1, True),
    ],
)
def test_no_lane_is_left_once_running_and_waiting_jobs_take_all(
    running: int, waiting: int, lanes: int, is_full: bool
) -> None:
    assert has_no_lane_left(running=running, waiting=waiting, lanes=lanes) is is_full


def two_lanes(**config: object) -> Loop:
    """`a` and `long` run on two lanes; `a` ends first."""
    loop = make(**{"lanes": 2, **config})
    loop.submit(job("a", range(100), 4))
    loop.submit(job("long", range(300, 350), 400))
    return loop


def end_of(loop: Loop, name: str) -> list[int]:
    """Go on until a job has ended; its ids, answer included."""
    while name not in loop.ended:
        loop.turn()
        check_everything(loop)
    return [*loop.jobs[name].tokens, *loop.answers[name]]


def cells_of(loop: Loop, name: str) -> list[int]:
    """Where a running job lies."""
    held = loop.scheduler._streams[name].held
    assert held is not None
    return list(loop.kv.full.of[held.sequence].values())


def test_while_others_wait_an_idle_prefix_leaves_at_once_and_what_starts_takes_its_cells() -> None:
    loop = two_lanes()
    loop.submit(job("next", range(600, 690), 4))
    end_of(loop, "a")
    loop.turn()
    assert loop.scheduler.counters()["cells_idle"] == 0
    assert max(cells_of(loop, "next")) < 100


def test_a_turn_that_had_to_wait_gets_its_whole_prefix_back() -> None:
    loop = two_lanes()
    loop.submit(job("next", range(600, 690), 4))
    history = end_of(loop, "a")
    loop.submit(job("a again", [*history, *range(900, 910)], 2))
    end_of(loop, "a again")
    assert loop.cached("a again") == len(history) - 1
    assert loop.scheduler.counters()["idle_evictions"] == 0


def test_a_prefix_that_the_next_job_begins_with_stays() -> None:
    loop = two_lanes()
    history = end_of(loop, "a")
    loop.submit(job("a again", [*history, *range(900, 910)], 2))
    loop.turn()
    counters = loop.scheduler.counters()
    assert counters["adoptions"] == 1
    assert counters["moves_to_host"] == 0


def test_with_a_lane_left_a_prefix_stays_for_a_quick_return() -> None:
    loop = two_lanes(lanes=3)
    end_of(loop, "a")
    loop.turn()
    assert loop.scheduler.counters()["cells_idle"] == 103
    loop.submit(job("second", range(600, 620), 400))
    loop.submit(job("third", range(700, 720), 400))
    loop.turn()
    assert loop.scheduler.counters()["cells_idle"] == 0


def test_a_long_prefix_leaves_in_pieces_and_nobody_waits_for_it() -> None:
    loop = make(lanes=2)
    loop.submit(job("a", range(400), 4))
    loop.submit(job("long", range(500, 550), 400))
    loop.submit(job("next", range(600, 690), 4))
    end_of(loop, "a")
    pieces = []
    while loop.scheduler.counters()["cells_idle"]:
        before = loop.scheduler.counters()["moves_to_host"]
        loop.turn()
        pieces.append(loop.scheduler.counters()["moves_to_host"] - before)
    assert "next" in loop.started
    assert pieces == [1] * len(pieces)
    assert len(pieces) > 1


@pytest.mark.parametrize("config", [{"park_after_s": None}, {"host_bytes_max": 0}])
def test_nothing_leaves_early_where_resting_does_not_move_it(config: dict[str, object]) -> None:
    loop = two_lanes(**config)
    loop.submit(job("next", range(600, 690), 4))
    end_of(loop, "a")
    loop.turn()
    assert loop.scheduler.counters()["cells_idle"] == 103
