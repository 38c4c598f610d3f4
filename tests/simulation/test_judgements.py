"""A question's judgement bites: figures that break a bound, made by hand, are called broken."""

from __future__ import annotations

import random

import pytest

from simulations import detection_time, dissemination, lifeguard
from simulations.question import Answer, Row
from simulations.theory import infected_at, infection_delay, trend

GOOD = {"SWIM": (1000, 500), "Buddy": (940, 300), "LHA-Probe": (300, 100), "LHA-Suspicion": (100, 50)}


def lifeguard_answer(**changed: tuple[int, int]) -> Answer:
    figures = {**GOOD, "Lifeguard": (10, 5), **changed}

    def row(name: str) -> Row:
        false, at_healthy = figures[name]
        return {"configuration": name, "FP": false, "FP-": at_healthy, "messages": 100, "bytes": 1, "first p50 s": 9.0}

    answer = Answer(rows=[row(name) for name in ("SWIM", "Buddy", "LHA-Probe", "LHA-Suspicion", "Lifeguard")])
    # Three runs of each, the same in pairs but for a third of the difference.
    third = (figures["Buddy"][0] - figures["SWIM"][0]) // 3
    answer.measured |= lifeguard.buddy_beside_plain([300 + third] * 3, [300] * 3)
    lifeguard._compare(answer, is_quick=False)
    return answer


def test_lifeguards_parts_in_the_papers_order_hold():
    assert lifeguard_answer().holds


@pytest.mark.parametrize(
    "changed",
    [
        {"Buddy": (200, 100)},
        {"LHA-Suspicion": (400, 50)},
        {"LHA-Probe": (960, 100)},
        {"Lifeguard": (21, 5)},
        {"Lifeguard": (10, 11)},
    ],
    ids=str,
)
def test_lifeguards_parts_in_another_order_do_not(changed):
    assert not lifeguard_answer(**changed).holds


def test_the_buddy_system_above_plain_swim_is_judged_by_runs_in_pairs():
    """One run that gains what another loses is chance; the same excess in twelve runs is not."""
    pairs = [[300, -290, 10, -5], [40] * 12]
    judged = [lifeguard.buddy_beside_plain([1000 + more for more in pair], [1000] * len(pair)) for pair in pairs]
    above, errors = (
        [one["Buddy above SWIM"] for one in judged],
        [one["Buddy above SWIM, ±"] for one in judged],
    )
    assert above == [15, 480]
    assert above[0] < errors[0]
    assert above[1] > lifeguard.SIGMAS * errors[1]


def rows_with_deviations(*offs: float, error: float = 0.01) -> Answer:
    sizes = (8, 32, 128)
    return Answer(
        rows=[
            {"order": "random", "n": n, "crashes": 1, "theory": 1.5, "±": 1.5 * error, "off": off}
            for n, off in zip(sizes, offs, strict=True)
        ]
    )


def test_a_deviation_that_rises_with_n_is_a_trend_though_each_is_within_the_bound():
    assert not detection_time._has_no_trend(rows_with_deviations(-0.05, 0.0, 0.05))
    assert not detection_time._has_no_trend(rows_with_deviations(0.04, 0.0, -0.04))


def test_deviations_that_chance_explains_are_none():
    assert detection_time._has_no_trend(rows_with_deviations(0.01, -0.02, 0.015))
    assert detection_time._has_no_trend(rows_with_deviations(-0.05, 0.0, 0.05, error=0.05))


def test_a_trend_is_the_slope_of_the_line_with_its_error():
    rise, error = trend([0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [0.1, 0.1, 0.1])
    assert rise == pytest.approx(2.0)
    assert error == pytest.approx(0.2 / 2**0.5)
    assert trend([1.0], [5.0], [0.1]) == (0.0, 0.0)


def deaths(*, late: float = 0.0, scale: float = 1.0, tail: float = 0.0) -> list[float]:
    """A thousand times to DEAD at n = 2: a wait spread evenly over a period, the probe, and the suspicion."""
    rng = random.Random(4)
    return [5 + late + scale * rng.random() + (tail if rng.random() < 0.2 else 0.0) for _ in range(1000)]


def test_times_to_dead_as_in_the_table_hold():
    assert detection_time.small_row(2, deaths())["holds"]
    assert detection_time.small_row(2, deaths(late=0.03))["holds"]


@pytest.mark.parametrize(
    "times",
    [deaths(late=0.1), deaths(late=-0.1), deaths(scale=0.8, late=0.1), deaths(tail=0.2), [*deaths(), 6.3]],
    ids=["later", "sooner", "narrower", "a tail", "one too late"],
)
def test_times_to_dead_unlike_the_table_do_not(times):
    assert not detection_time.small_row(2, times)["holds"]


def curve(n: int, late: float, stretch: float = 1.0) -> list[float]:
    return [stretch * infected_at(n, (rank + 1) / n) + infection_delay(n) + late for rank in range(1, n - 1)] + [9.0]


@pytest.mark.parametrize(
    ("late", "stretch", "holds"),
    [(0.0, 1.0, True), (0.15, 1.0, True), (0.5, 1.0, False), (-0.5, 1.0, False), (0.0, 1.5, False)],
)
def test_coverage_is_judged_against_the_curve(late, stretch, holds):
    curves = [curve(64, late + wobble, stretch) for wobble in (-0.01, 0.0, 0.01)]
    assert dissemination._against_the_oracle(64, curves)["on the curve"] is holds


def test_news_that_did_not_reach_a_quarter_is_not_on_the_curve():
    assert dissemination._against_the_oracle(64, [curve(64, 0.0), [1.0, 2.0]])["on the curve"] is False
