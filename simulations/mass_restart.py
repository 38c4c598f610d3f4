"""Everybody restarts within three seconds, again and again, with and without a state folder: is anybody missing?"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from simulations.harness import formed
from simulations.question import Answer, Parameters, Question, Row
from swimcluster.testing.faults import Crash, Fault, play
from swimcluster.testing.network import SECOND
from swimcluster.testing.randomness import fork
from swimcluster.testing.search import map_seeds

MEMBERS, TIMES = 100, 10
WITHIN_S = 3.0
DOWN_S = 0.5
LIMIT_S = 60.0


def restarts(seed: int, *, n: int, times: int, keep_disk: bool) -> Row:
    """The longest time from the last start of a round until every view holds everybody's new life."""
    cluster = formed(n, seed)
    rng = fork(seed, "restarts")
    worst, missing = 0.0, 0
    for _ in range(times):
        begin = cluster.world.now
        schedule: list[Fault] = [
            Crash(
                at_ns=begin + int(rng.random() * (WITHIN_S - DOWN_S) * SECOND),
                for_ns=int(DOWN_S * SECOND),
                member=name,
                keep_disk=keep_disk,
                host_down=False,
            )
            for name in cluster.places
        ]
        play(cluster.world, schedule)
        cluster.world.run_until(begin + int(WITHIN_S * SECOND))
        seconds = cluster.settle(limit_s=LIMIT_S, every_s=1.0)
        if seconds is None:
            missing += len(cluster.differences(most=n * n))
            seconds = math.inf
        worst = max(worst, seconds)
    return {
        "seed": seed,
        "n": n,
        "state folder": "kept" if keep_disk else "lost",
        "times": times,
        "slowest whole view s": worst,
        "missing": missing,
        "holds": missing == 0,
    }


def run(parameters: Parameters) -> Answer:
    """Restart with the disks kept, then with the disks lost."""
    n = (parameters.members or (parameters.pick(12, 40, MEMBERS),))[0]
    times = parameters.pick(2, 3, TIMES)
    answer = Answer()
    for keep_disk in (True, False):
        task = partial(restarts, n=n, times=times, keep_disk=keep_disk)
        rows: list[Any] = map_seeds(task, parameters.seeds_or(1, 1, 1), processes=parameters.processes)
        answer.rows += rows
    answer.holds = all(row["holds"] for row in answer.rows)
    answer.measured = {
        "missing": sum(int(row["missing"] or 0) for row in answer.rows),
        "slowest whole view s": max(float(row["slowest whole view s"] or 0) for row in answer.rows),
    }
    return answer


QUESTION = Question(
    "mass_restart",
    "Does everybody come back when all members restart within 3 s, ten times, with and without state folders?",
    "within 60 s of the last start nobody is missing from any view, and every view has the new life of each member",
    run,
)
