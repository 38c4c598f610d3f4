"""How fast news spreads: by piggyback alone against SWIM's logistic curve, and with the gossip ticker of the defaults."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from simulations.harness import SWIM_ONLY, EventLog, formed
from simulations.question import Answer, Parameters, Question, Row
from simulations.theory import infected_at, infection_delay, mean_and_error, quantile
from swimcluster.testing.cluster import SimulatedCluster
from swimcluster.testing.network import SECOND
from swimcluster.testing.randomness import fork
from swimcluster.testing.search import map_seeds

LAN_LIMIT_S = 2.0
LAN_SIZES_MAX = 32
SHARES = (0.25, 0.5, 0.75)
"""Shares of the members at which the measured curve is held against the logistic one."""
CURVE_FROM = 32
"""Smaller clusters are shown beside the curve and not judged: a handful of members is no mean field."""
LAG_WITHIN = 0.2
"""Periods by which the measured mean may differ from the delayed curve, beside three standard errors."""


def spread(cluster: SimulatedCluster, number: int, origin: str, *, limit_s: float) -> list[float]:
    """Change one member's metadata; returns the seconds after which each other member knew, in order."""
    log = EventLog("MetadataChanged").watch(cluster)
    start = cluster.world.now
    cluster.call(origin, "set_metadata", b"news %d" % number)
    others = len(cluster.places) - 1
    cluster.world.run_while(lambda: len(log.happenings) < others, limit_s=limit_s)
    cluster.world.unwatch(log)
    return [(one.at - start) / SECOND for one in log.happenings if one.about == origin]


def spreads(seed: int, *, n: int, news: int, settings: dict[str, Any], limit_s: float) -> list[list[float]]:
    """Several pieces of news in one cluster, one after another."""
    cluster = formed(n, seed, **settings)
    rng, names = fork(seed, "news"), list(cluster.places)
    found = []
    for number in range(news):
        cluster.world.run_for(5 + 20 * rng.random())
        found.append(spread(cluster, number, names[rng.randrange(n)], limit_s=limit_s))
    return found


def piggyback(n: int, parameters: Parameters) -> Row:
    """Plain SWIM: mean periods until shares of the members know, and until all do, beside the logistic curve and 3 ln n."""
    seeds = parameters.seeds_or(2, 3, 10 if n <= 200 else 2)
    limit = 3 * math.log(n)
    task = partial(spreads, n=n, news=5, settings=SWIM_ONLY, limit_s=4 * limit)
    curves = [curve for one in map_seeds(task, seeds, processes=parameters.processes) for curve in one]
    last = [curve[-1] if len(curve) == n - 1 else math.inf for curve in curves]
    row: Row = {"what": "piggyback", "n": n, "news": len(curves)}
    row |= _against_the_oracle(n, curves)
    return row | {
        "last p50": quantile(last, 0.5),
        "last max": max(last),
        "bound": limit,
        "holds": max(last) <= limit and row["on the curve"] is not False,
    }


def _against_the_oracle(n: int, curves: list[list[float]]) -> Row:
    """Mean periods until each of `SHARES` knows, beside the logistic curve delayed as a growth from one member is."""
    row: Row = {}
    on_the_curve = True
    for share in SHARES:
        rank = math.ceil(share * n) - 1  # Who changed it knows from the start.
        mean, error = mean_and_error([curve[rank - 1] if len(curve) >= rank else math.inf for curve in curves])
        expected = infected_at(n, share) + infection_delay(n)
        on_the_curve &= abs(mean - expected) <= LAG_WITHIN + 3 * error
        row |= {f"{share:.0%} know": mean, f"oracle {share:.0%}": expected}
    return row | {"on the curve": on_the_curve if n >= CURVE_FROM else None}


def defaults(n: int, parameters: Parameters) -> Row:
    """LAN defaults: seconds until a change of metadata is in every view."""
    seeds = parameters.seeds_or(2, 4, 20)
    task = partial(spreads, n=n, news=5, settings={}, limit_s=30.0)
    curves = [curve for one in map_seeds(task, seeds, processes=parameters.processes) for curve in one]
    last = [curve[-1] if len(curve) == n - 1 else math.inf for curve in curves]
    bound = LAN_LIMIT_S if n <= LAN_SIZES_MAX else 30.0
    return {
        "what": "LAN metadata, s",
        "n": n,
        "news": len(curves),
        "half": quantile([curve[(n - 1) // 2 - 1] for curve in curves], 0.5) if n > 2 else None,
        "last p50": quantile(last, 0.5),
        "last max": max(last),
        "bound": bound,
        "holds": max(last) <= bound,
    }


def vitals_age(n: int, parameters: Parameters) -> Row:
    """Mean age of what members know of each other's vitals, beside the formula.

    Owners make a new value each probe interval U, which waits for the gossip tick of length T if it comes too soon.
    With g gossip nodes and m others, each shuffled round passes each of them once; two visits are (m/g)·T apart on
    average and triangular, so that from a random moment the last one is 7/12 of that old (T/2 when m ≤ g: every tick
    reaches everybody). Mean age: U/2 + T/2 + 7/12·(m/g)·T. Oldest: U + T + 2·⌈m/g⌉·T. Pings and acks make it younger.
    """
    cluster = formed(n, 1)
    config = cluster.config("n000")
    world, rng = cluster.world, fork(1, "vitals")
    stagger = {name: rng.random() for name in cluster.places}

    def publish(name: str) -> None:
        cluster.call(name, "set_vitals", b"%d" % world.now)
        world.after(round(config.probe_interval_s * SECOND), publish, name)

    for name, offset in stagger.items():
        world.after(round(offset * SECOND), publish, name)
    world.run_for(10 + n / 10)
    ages: list[float] = []
    for _ in range(20):
        world.run_for(0.9 + rng.random() / 5)
        for name in cluster.places:
            others = [m for m in cluster.view(name).values() if not m.is_local and m.vitals]
            ages += [(world.now - int(m.vitals)) / SECOND for m in others]
    interval, tick, rounds = config.probe_interval_s, config.gossip_interval_s, (n - 1) / config.gossip_nodes
    gap, longest = (tick / 2, tick) if rounds <= 1 else (rounds * tick * 7 / 12, 2 * math.ceil(rounds) * tick)
    theory, mean = interval / 2 + tick / 2 + gap, sum(ages) / len(ages)
    oldest = interval + tick + longest + 0.01
    return {
        "what": "vitals' age, s",
        "n": n,
        "news": len(ages),
        "half": mean,
        "oracle half": theory,
        "last p50": quantile(ages, 0.99),
        "last max": max(ages),
        "bound": oldest,
        "holds": mean <= 1.05 * theory and max(ages) <= oldest and len(ages) == 20 * n * (n - 1),
    }


def run(parameters: Parameters) -> Answer:
    """Measure piggyback, defaults and vitals at each size."""
    sizes = parameters.members or parameters.pick((8, 32), (32, 64), (32, 128, 1000))
    answer = Answer()
    answer.rows = [piggyback(n, parameters) for n in sizes]
    lan = parameters.members or parameters.pick((3, 8), (3, 8, 32), (3, 8, 16, 32, 128))
    answer.rows += [defaults(n, parameters) for n in lan]
    answer.rows += [vitals_age(n, parameters) for n in lan]
    answer.holds = all(row["holds"] for row in answer.rows)
    answer.measured = {f"{row['what']} n={row['n']}: last": row["last max"] for row in answer.rows}
    answer.notes.append("For vitals, half is the mean age, oracle half the formula's, and last p50 the 99 % quantile.")
    return answer


QUESTION = Question(
    "dissemination",
    "How fast is news in every view?",
    "piggyback only: from 32 members on a quarter, half and three quarters know within 0.2 periods (and 3 standard errors) of the logistic "
    "curve, delayed by γ/(2 − 1/n) since a growth that begins with one starts by chance, and the last within 3 ln n; LAN defaults: a change of metadata is in every view "
    "within 2 s at n ≤ 32; vitals no older than their formula, on average (+5 %) and at most",
    run,
)
