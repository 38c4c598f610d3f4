"""Two halves apart for longer than anything but addresses is remembered, the seeds dead: do they find each other?"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from simulations.harness import formed
from simulations.question import Answer, Parameters, Question, Row
from swimcluster.testing.faults import Partition, play
from swimcluster.testing.network import SECOND
from swimcluster.testing.search import map_seeds

MEMBERS = 10
APART_S = 300


def heal_limit_s(reconnect_interval_s: float, push_pull_interval_s: float) -> float:
    """Documented time to one view: two rounds of reconnecting, and one of push/pull to tell everybody."""
    return 2 * reconnect_interval_s + push_pull_interval_s


def healed(seed: int, *, n: int, apart_s: int) -> Row:
    """Seconds until one view, after the seed died and the halves were apart."""
    cluster = formed(n, seed)
    cluster.world.run_for(5)
    names = list(cluster.places)
    cluster.stop(names[0])
    half = frozenset(names[: n // 2 + 1])
    play(cluster.world, [Partition(cluster.world.now + SECOND, apart_s * SECOND, half)])
    cluster.world.run_for(apart_s)
    largest = max(len(cluster.view(name)) for name in cluster.running())
    cluster.world.run_for(1)
    config = cluster.config(names[1])
    limit = heal_limit_s(config.reconnect_interval_s, config.push_pull_interval_s)
    seconds = cluster.settle(limit_s=4 * limit)
    return {
        "seed": seed,
        "n": n,
        "apart s": apart_s,
        "largest view apart": largest,
        "healed after s": math.inf if seconds is None else seconds,
        "bound": limit,
        "holds": seconds is not None and seconds <= limit and largest <= (n + 1) // 2,
    }


def run(parameters: Parameters) -> Answer:
    """Try several sizes and seeds."""
    sizes = parameters.members or parameters.pick((6,), (6, MEMBERS), (4, MEMBERS, 32))
    seeds = parameters.seeds_or(2, 5, 20)
    apart_s: int = APART_S if parameters.ticks is None else parameters.ticks // 10
    answer = Answer()
    for n in sizes:
        rows: list[Any] = map_seeds(partial(healed, n=n, apart_s=apart_s), seeds, processes=parameters.processes)
        answer.rows += rows
    answer.holds = all(row["holds"] for row in answer.rows)
    answer.measured = {"longest": max(float(row["healed after s"] or 0) for row in answer.rows)}
    answer.notes.append(
        "Apart for longer than gossip to the dead (30 s) and tombstones (90 s) last; addresses of failed members are "
        "kept for `reconnect_for_s` (24 h), and that is the limit: after it only seeds or a restart from disk help."
    )
    return answer


QUESTION = Question(
    "partition_heal",
    "Do two halves become one again when they were apart longer than deaths are remembered, with every seed dead?",
    "one view within two reconnect intervals and one push/pull interval (50 s on a LAN) after the cut is mended",
    run,
)
