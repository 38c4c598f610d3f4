"""Fifty members join, a tenth crashes and is lost everywhere, comes back with and without its disk, and all is whole."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from simulations.question import Answer, Parameters, Question, Row
from swimcluster.testing.cluster import SimulatedCluster
from swimcluster.testing.invariants import Checks
from swimcluster.testing.network import Network
from swimcluster.testing.randomness import fork
from swimcluster.testing.search import map_seeds

MEMBERS = 50
BRISK: dict[str, Any] = {
    "probe_interval_s": 0.5,
    "probe_timeout_s": 0.2,
    "gossip_interval_s": 0.5,
    "suspicion_mult": 1.5,
}
"""Short times for many seeds: a death is certain about three seconds after a crash."""


def limit_s(n: int) -> float:
    """Whom the news about a member missed hears of it by its ping, within 2n − 3 periods (SWIM §4.3), and a second."""
    return (2 * n - 3) * float(BRISK["probe_interval_s"]) + 1.0


def join_lose_and_regain(seed: int, *, n: int = MEMBERS) -> Row:
    """Seconds to one view after joining, after losing a tenth, and after its return; violations of any invariant."""
    cluster = SimulatedCluster(n, seed=seed, network=Network(seed=seed, loss=0.01), **BRISK)
    checks = Checks(cluster, look_every_s=2.0, after_event_s=0.5)
    row: Row = {"seed": seed, "n": n}
    cluster.start_all(within_s=1)
    row["joined s"] = _settle(cluster)
    victims = fork(seed, "victims").sample(list(cluster.places), max(1, n // 10))
    for name in victims:
        cluster.stop(name)
    row["lost s"] = _settle(cluster)
    for i, name in enumerate(victims):
        if i % 2:
            cluster.world.nodes[name].disk.clear()
        cluster.start(name)
    row["regained s"] = _settle(cluster)
    row["violations"] = len(checks.violations)
    row["first"] = checks.violations[0] if checks.violations else "; ".join(cluster.differences(most=2))
    row["holds"] = not row["first"] and checks.looks > n
    return row


def _settle(cluster: SimulatedCluster) -> float:
    seconds = cluster.settle(limit_s=limit_s(len(cluster.places)), every_s=0.5)
    return math.inf if seconds is None else seconds


def run(parameters: Parameters) -> Answer:
    """Every seed; the slowest of each phase, and whatever did not hold, is shown."""
    n = (parameters.members or (parameters.pick(20, MEMBERS, MEMBERS),))[0]
    seeds = parameters.seeds_or(2, 20, 200)
    rows: list[Any] = map_seeds(partial(join_lose_and_regain, n=n), seeds, processes=parameters.processes)
    phases = ("joined s", "lost s", "regained s")
    worst: Row = {"seed": "worst", "n": n, **{phase: max(row[phase] for row in rows) for phase in phases}}
    worst |= {"violations": sum(row["violations"] for row in rows), "holds": all(row["holds"] for row in rows)}
    answer = Answer(rows=[*[row for row in rows if not row["holds"]][:5], worst], holds=bool(worst["holds"]))
    answer.measured = {"seeds": len(rows), **{f"slowest: {phase}": worst[phase] for phase in phases}}
    return answer


QUESTION = Question(
    "regain",
    "Do fifty members join, lose a tenth of themselves and regain it, at 1 % loss, under every invariant?",
    "for every seed (full: 200): one view within 2n − 3 probe periods (and 1 s) after each phase, and no invariant violated",
    run,
)
