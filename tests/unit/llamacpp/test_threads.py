"""Thread counts follow what steps cost, and stay put on a quiet machine."""

from __future__ import annotations

import pytest

from saiserve.engines.llamacpp.threads import PATIENCE_STEPS, ThreadChooser

QUIET = {2: 0.007, 1: 0.013}
BUSY = {2: 0.400, 1: 0.040}


def run(chooser: ThreadChooser, cost: dict[int, float], steps: int, rows: int = 1) -> list[int]:
    used = []
    for _ in range(steps):
        used.append(chooser.threads)
        chooser.observe(rows, cost[chooser.threads] * (1 + (rows - 1) * 0.5))
    return used


def test_on_a_quiet_machine_nothing_is_ever_tried() -> None:
    chooser = ThreadChooser(2, QUIET)
    assert set(run(chooser, QUIET, 5_000)) == {2}
    assert set(run(chooser, QUIET, 1_000, rows=16)) == {2}


def test_longer_contexts_do_not_look_like_trouble() -> None:
    chooser = ThreadChooser(2, QUIET)
    for step in range(5_000):
        assert chooser.threads == 2
        chooser.observe(1, 0.007 * (1 + step / 4_000))


def test_busy_neighbours_make_it_one_thread_and_their_end_two_again() -> None:
    chooser = ThreadChooser(2, QUIET)
    run(chooser, QUIET, 200)
    run(chooser, BUSY, 200)
    busy = run(chooser, BUSY, 1_000)
    assert busy.count(1) > 0.95 * len(busy)
    quiet = run(chooser, QUIET, 5_000)
    assert set(quiet[-1_000:]) == {2}


def test_a_start_beside_busy_neighbours_begins_with_one_and_grows() -> None:
    chooser = ThreadChooser(2, BUSY)
    assert chooser.threads == 1
    assert set(run(chooser, QUIET, 3 * PATIENCE_STEPS)[-10:]) == {2}


def test_trials_that_change_nothing_become_rare() -> None:
    chooser = ThreadChooser(4, {4: 0.1, 2: 0.02, 1: 0.1})
    assert chooser.threads == 2
    used = run(chooser, {4: 0.1, 2: 0.02, 1: 0.1}, 20_000)
    assert used.count(4) < 120


@pytest.mark.parametrize("chooser", [ThreadChooser(2, fixed=True), ThreadChooser(1)])
def test_a_number_that_was_set_stays(chooser: ThreadChooser) -> None:
    first = chooser.threads
    assert set(run(chooser, {1: 0.01, 2: 0.01}, 50) + run(chooser, {1: 5.0, 2: 5.0}, 500)) == {first}
