"""Whether probes of live members fail exactly as often as SWIM's formula says: the cheapest exact oracle there is."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from simulations.harness import SWIM_ONLY, formed
from simulations.question import Answer, Parameters, Question, Row
from simulations.theory import false_detections_per_period, poisson_interval, probe_failure
from swimcluster.testing.search import map_seeds

MEMBERS = 16
EXPECTED_MIN = 100
EXPECTED_ENOUGH = 1000
"""Frequent failures need no more runs than this count asks for."""
Z = 3.29
"""99.9 % interval, for a dozen tests at once."""


def failures(seed: int, *, loss: float, k: int, n: int, periods: int) -> tuple[int, int]:
    """Probes begun and probes failed in so many periods, with nothing to bring a failed probe to a halt.

    A failed probe is what plain SWIM calls a detection. The suspicion that follows here is set so long that it never
    runs out: the group keeps its size, and each period has its n probes, as the formula supposes.
    """
    settings: dict[str, Any] = {**SWIM_ONLY, "indirect_probes": k, "suspicion_mult": 100.0, "probe_order": "random"}
    cluster = formed(n, seed, **settings)
    cluster.world.run_for(3)
    cluster.world.network.set_base(loss=loss)
    begun, failed = _count(cluster)
    cluster.world.run_for(periods)
    # Probes under way at either end cancel out on average: one per member among `periods`.
    after_begun, after_failed = _count(cluster)
    return after_begun - begun, after_failed - failed


def _count(cluster: Any) -> tuple[int, int]:
    statistics = [cluster.machine(name).statistics() for name in cluster.places]
    return sum(s.probes for s in statistics), sum(s.probes_failed for s in statistics)


def run(parameters: Parameters) -> Answer:
    """Measure every pair of loss and k whose expected count reaches a hundred."""
    n = (parameters.members or (MEMBERS,))[0]
    seeds = parameters.seeds_or(2, 4, 40)
    periods: int = parameters.pick(150, 300, 400) if parameters.ticks is None else parameters.ticks // 10
    answer, skipped = Answer(holds=True), []
    for loss in (0.01, 0.05, 0.10, 0.20):
        for k in (0, 1, 3):
            expected = probe_failure(1 - loss, k) * n * periods * len(seeds)
            if expected < EXPECTED_MIN:
                skipped.append(f"loss {loss:.0%} k={k} (expected {expected:.1f})")
                continue
            task = partial(failures, loss=loss, k=k, n=n, periods=periods)
            enough = seeds if parameters.seeds else seeds[: math.ceil(EXPECTED_ENOUGH / (expected / len(seeds)))]
            counts = map_seeds(task, enough, processes=parameters.processes)
            answer.rows.append(_row(loss, k, sum(b for b, _ in counts), sum(f for _, f in counts)))
            answer.holds &= bool(answer.rows[-1]["holds"])
    answer.measured = {"pairs tested": len(answer.rows), "pairs not tested": len(skipped)}
    if skipped:
        answer.notes.append("Not tested, expected count below 100 in this run: " + "; ".join(skipped) + ".")
    return answer


def _row(loss: float, k: int, begun: int, failed: int) -> Row:
    low, high = (edge / begun for edge in poisson_interval(failed, Z))
    theory = probe_failure(1 - loss, k)
    return {
        "loss": loss,
        "k": k,
        "probes": begun,
        "failed": failed,
        "theory": theory,
        "measured": failed / begun,
        "low": low,
        "high": high,
        "SWIM's PM(T)": false_detections_per_period(1 - loss, k),
        "holds": low <= theory <= high,
    }


QUESTION = Question(
    "false_positive_oracle",
    "Do probes of live members fail as often as (1 − q²)(1 − q⁴)^k says, for a delivery probability q?",
    "the formula lies in the 99.9 % interval of every pair of loss 1, 5, 10, 20 % and k = 0, 1, 3 whose expected count "
    "reaches 100",
    run,
)
