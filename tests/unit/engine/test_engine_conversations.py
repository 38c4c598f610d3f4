"""Many conversations over few lanes and cells: how much of what could be reused is."""

from __future__ import annotations

import pytest

from saiserve.engines.llamacpp.kv import Family
from tests.fakes.engine_loop import Loop, job, make_loop

FAMILIES = [Family.FULL, Family.WINDOW, Family.RECURRENT]
SYSTEM = list(range(60))
ANSWER = 12
QUESTION = 20


def converse(loop: Loop, conversations: int, turns: int) -> float:
    """All conversations at once, each asking again when answered; returns reused ÷ reusable prompt tokens."""
    history = {index: list(SYSTEM) for index in range(conversations)}
    turn = dict.fromkeys(history, 0)
    reusable = 0

    def ask(index: int) -> None:
        nonlocal reusable
        if turn[index]:
            reusable += len(history[index]) - 1  # the last token drawn was never computed
        elif index:
            reusable += len(SYSTEM)
        boundaries = (len(SYSTEM), len(history[index]), len(history[index]) + QUESTION - 3)
        first = 1000 + 1000 * index + 100 * turn[index]
        history[index] += range(first, first + QUESTION)
        loop.submit(job(f"{index}.{turn[index]}", history[index], ANSWER, boundaries=boundaries))

    for index in history:
        ask(index)
    open_jobs = {f"{index}.0": index for index in history}
    while open_jobs:
        loop.turn()
        for name in [name for name in open_jobs if name in loop.ended]:
            index = open_jobs.pop(name)
            history[index] += loop.answers[name]
            turn[index] += 1
            if turn[index] < turns:
                ask(index)
                open_jobs[f"{index}.{turn[index]}"] = index
    return sum(started.cached_tokens for started in loop.started.values()) / reusable


@pytest.mark.parametrize("family", FAMILIES)
def test_four_conversations_of_four_turns_reuse_all_they_can(family: Family) -> None:
    loop = make_loop(family, cells=3000, lanes=4, sequences=32, host_bytes_max=1 << 24, batch_max=512)
    assert converse(loop, 4, 4) >= 0.97
    assert loop.scheduler.counters()["gate_refusals"] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_sixteen_conversations_on_four_lanes_come_back_from_host_memory(family: Family) -> None:
    loop = make_loop(family, cells=1200, lanes=4, sequences=8, host_bytes_max=1 << 24, batch_max=512, hot_cells_max=300)
    assert converse(loop, 16, 6) >= 0.97
    counters = loop.scheduler.counters()
    assert counters["moves_from_host"] > 10
    assert counters["gate_refusals"] == counters["requeues"] == 0
