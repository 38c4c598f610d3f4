"""How long a member can go unprobed by another one."""

from __future__ import annotations

from functools import partial
from typing import Any

from simulations.harness import SWIM_ONLY, formed
from simulations.question import Answer, Parameters, Question
from swimcluster.messages import Ping
from swimcluster.testing.cluster import SimulatedCluster
from swimcluster.testing.network import SECOND
from swimcluster.testing.node import Node
from swimcluster.testing.observer import Observer
from swimcluster.testing.search import map_seeds
from swimcluster.testing.wire import Wire
from swimcluster.testing.world import World

INTERVAL_S = 1.0
SLACK_S = 0.1
"""Timers may run a little late; a tenth of a period is not another period."""


class ProbeGaps(Observer):
    """The longest time between two pings from one of `judged` to another of them."""

    def __init__(self, cluster: SimulatedCluster, judged: list[str]) -> None:
        self.wire = Wire(cluster.config(judged[0]))
        start = cluster.world.now
        self.last = {(a, b): start for a in judged for b in judged if a != b}
        self.longest = 0
        self.pings = 0
        cluster.world.watch(self)

    def stepped(self, world: World, node: Node, kind: str, sent: list[Any], events: list[Any]) -> None:
        """Note the pings among what is sent."""
        for item in sent:
            for message in self.wire.messages(item.data):
                pair = (node.name, message.name) if isinstance(message, Ping) else None
                if pair in self.last:
                    self.pings += 1
                    self.longest = max(self.longest, world.now - self.last[pair])
                    self.last[pair] = world.now

    def longest_s(self, world: World) -> float:
        """The longest gap in seconds, gaps that are still open included."""
        return max(self.longest, *(world.now - at for at in self.last.values())) / SECOND


def longest_gap_s(seed: int, *, n: int, churn: bool) -> float:
    """The longest gap in seconds over eight times 2n − 1 periods; with churn one of the others restarts now and then.

    Under churn only the half that stays is judged: whoever restarts begins its list anew.
    """
    cluster = formed(n, seed, **SWIM_ONLY)
    names = list(cluster.places)
    judged = names[: max(2, n // 2)] if churn else names
    gaps = ProbeGaps(cluster, judged)
    for turn in range(16):
        if churn:
            victim = names[-1 - turn % (n - len(judged))]
            cluster.stop(victim)
            cluster.world.run_for(2.5)
            cluster.start(victim)
        cluster.world.run_for((2 * n - 1) * INTERVAL_S / 2)
    return gaps.longest_s(cluster.world)


def run(parameters: Parameters) -> Answer:
    """Measure quiet and churning clusters."""
    sizes = parameters.members or parameters.pick((3, 5, 8), (3, 8, 16, 32), (2, 3, 5, 8, 16, 32, 64, 128))
    seeds = parameters.seeds_or(2, 3, 5)
    answer = Answer(holds=True)
    for n in sizes:
        for churn in (False, True) if n >= 5 else (False,):
            task = partial(longest_gap_s, n=n, churn=churn)
            longest = max(map_seeds(task, seeds, processes=parameters.processes)) / INTERVAL_S
            holds = longest <= 2 * n - 1 + SLACK_S
            answer.rows.append(
                {
                    "n": n,
                    "churn": churn,
                    "runs": len(seeds),
                    "bound 2n-1": 2 * n - 1,
                    "longest": longest,
                    "holds": holds,
                }
            )
            answer.holds &= holds
    answer.measured["longest gap over bound"] = max(
        float(row["longest"] or 0) / float(row["bound 2n-1"] or 1) for row in answer.rows
    )
    return answer


QUESTION = Question(
    "probe_completeness",
    "For how many periods can a member go unprobed by another one?",
    "never for more than 2n − 1 periods (SWIM §4.3), at any pair of members that stay",
    run,
)
