"""Names and addresses: moved, restarted, forgotten, cloned, held twice. No view may alternate, nobody be locked out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from simulations.harness import EventLog, formed
from simulations.question import Answer, Parameters, Question, Row
from swimcluster.address import Address
from swimcluster.config import Config
from swimcluster.push_pull import push_pull_scale
from swimcluster.testing.cluster import SimulatedCluster
from swimcluster.testing.membership_faults import SecondHolder, Twin, stop_refused
from swimcluster.testing.network import SECOND

LIMIT_S = 15.0
ALTERNATIONS_MAX = 2
ELSEWHERE = Address("10.200.0.1", 7000)
VICTIM = "n002"
COPY = f"{VICTIM}'0"

Case = Callable[[SimulatedCluster], None]


def moved(cluster: SimulatedCluster) -> None:
    """A live member's address changes and it says so."""
    cluster.world.move(cluster.world.nodes[VICTIM], ELSEWHERE)
    cluster.call(VICTIM, "readvertise", ELSEWHERE)


def restarted_elsewhere(cluster: SimulatedCluster) -> None:
    """A killed member starts at once at another address, its state folder kept."""
    cluster.stop(VICTIM)
    cluster.world.move(cluster.world.nodes[VICTIM], ELSEWHERE)
    cluster.start(VICTIM)


def lost_state(cluster: SimulatedCluster) -> None:
    """A killed member starts at once without its state folder."""
    cluster.stop(VICTIM)
    cluster.world.nodes[VICTIM].disk.clear()
    cluster.start(VICTIM)


def lost_state_and_time(cluster: SimulatedCluster) -> None:
    """As before, and the wall clock went back by a year: the first guess of an epoch is far too small."""
    cluster.stop(VICTIM)
    cluster.world.nodes[VICTIM].disk.clear()
    cluster.places[VICTIM].wall_skew_ms -= 365 * 86_400_000
    cluster.start(VICTIM)


def dead_then_back(cluster: SimulatedCluster) -> None:
    """A member is dead to all, then starts elsewhere without its state folder and with a slow wall clock."""
    cluster.stop(VICTIM)
    cluster.world.run_for(60)
    lost_state_and_time_elsewhere(cluster)


def lost_state_and_time_elsewhere(cluster: SimulatedCluster) -> None:
    """Start the victim, which is down, with nothing it had."""
    node = cluster.world.nodes[VICTIM]
    node.disk.clear()
    cluster.places[VICTIM].wall_skew_ms -= 365 * 86_400_000
    cluster.world.move(node, ELSEWHERE)
    cluster.start(VICTIM)


def left_then_back(cluster: SimulatedCluster) -> None:
    """A member leaves and starts again."""
    cluster.leave(VICTIM)
    cluster.world.run_for(6)
    cluster.start(VICTIM)


def second_holder(cluster: SimulatedCluster) -> None:
    """Another process starts under a live member's name."""
    SecondHolder(0, 600 * SECOND, VICTIM, ELSEWHERE).start(cluster.world)


def cloned(cluster: SimulatedCluster) -> None:
    """A copy of a live member's disk starts elsewhere, as a cloned machine would."""
    SecondHolder(0, 600 * SECOND, VICTIM, ELSEWHERE, clone=True).start(cluster.world)


def twin(cluster: SimulatedCluster) -> None:
    """A live member is copied while it runs, memory and all; the copy is elsewhere and does not know it."""
    Twin(0, 600 * SECOND, VICTIM, ELSEWHERE).start(cluster.world)


def twin_speaks(cluster: SimulatedCluster) -> None:
    """As before, and the copy says where it is."""
    twin(cluster)
    cluster.world.run_for(5)
    cluster.call(COPY, "readvertise", ELSEWHERE)


def twin_says(cluster: SimulatedCluster) -> None:
    """The copy has something new to say and still takes the original's address for its own."""
    twin(cluster)
    cluster.world.run_for(5)
    cluster.call(COPY, "set_metadata", b"of the copy")


def original_says(cluster: SimulatedCluster) -> None:
    """The copied member has something new to say."""
    twin(cluster)
    cluster.world.run_for(5)
    cluster.call(VICTIM, "set_metadata", b"of the original")


def both_say(cluster: SimulatedCluster) -> None:
    """Both say something new at once: one version has two contents until it is mended."""
    original_says(cluster)
    cluster.call(COPY, "set_metadata", b"of the copy")


def twin_suspected(cluster: SimulatedCluster) -> None:
    """A member accuses the one that there are two of: one refutes, the other says something just then."""
    twin(cluster)
    cluster.world.run_for(5)
    accuser = cluster.machine("n001").core
    accuser.news.accuse(accuser.now, accuser.table.live[VICTIM])
    cluster.call(COPY, "set_metadata", b"of the copy")


def taken_over_after_death(cluster: SimulatedCluster) -> None:
    """A name is dead to all; another process, elsewhere and with an empty disk, takes it."""
    cluster.stop(VICTIM)
    cluster.world.run_for(60)
    second_holder(cluster)


CASES: dict[str, Case] = {
    "address change": moved,
    "restart elsewhere": restarted_elsewhere,
    "lost state": lost_state,
    "lost state, wall clock back": lost_state_and_time,
    "dead, back with nothing": dead_then_back,
    "left, back": left_then_back,
    "two holders": second_holder,
    "clone": cloned,
    "taken over after death": taken_over_after_death,
    "twin, unnoticed": twin,
    "twin that moved": twin_speaks,
    "twin says something": twin_says,
    "original says something": original_says,
    "both say something": both_say,
    "twin, suspected": twin_suspected,
}
HOLDERS = {"taken over after death": [COPY], "twin, unnoticed": [VICTIM, COPY], "twin that moved": [COPY]}
"""Who has the name in the end, where it is not who held it and lives: a dead member's name goes to whoever takes it; two
copies that say the same are one member to all others; of two that differ, who is at its address holds it (P7)."""
ASIDE = {name: COPY for name in CASES if name.startswith(("twin", "original", "both"))} | {"twin that moved": VICTIM}
"""Whose own view is not asked. Receivers take each frame number of an instance once (P4), so of two that number alike
one is not heard now and then: a copy may doubt others meanwhile, and who was outlived learns of it by its next state
exchange at the latest (P7, P20)."""
CHANGES = ("MemberJoined", "MemberRestarted", "MemberMoved", "MemberDied", "MemberLeft")


def watched_s(cluster: SimulatedCluster) -> float:
    """A minute, or in greater clusters the longest wait for a state exchange (P20) and that exchange."""
    config: Config = cluster.machine(VICTIM).core.config
    exchange = 1.25 * config.push_pull_interval_s * push_pull_scale(len(cluster.running()))
    return max(60.0, exchange + config.exchange_timeout_s)


def case(name: str, seed: int, *, n: int) -> Row:
    """Seconds until all views agree with the facts, and how often a view changed its mind in the time after."""
    cluster = formed(n, seed)
    watched = watched_s(cluster)
    stop_refused(cluster.world)
    cluster.world.run_for(5)
    CASES[name](cluster)
    asked = [place for place in cluster.running() if place != ASIDE[name]] if name in ASIDE else None
    seconds = cluster.settle(limit_s=4 * LIMIT_S, among=asked)
    log = EventLog(*CHANGES).watch(cluster)
    cluster.world.run_for(watched)
    worst = max((_changes(log, observer) for observer in asked or cluster.running()), default=0)
    holders = [p for p in cluster.running() if cluster.places[p].member == VICTIM]
    # A twin's doubts are refuted: its presence may be met with a suspicion under way.
    agreed = cluster.settle(limit_s=LIMIT_S if name in ASIDE else 0, among=asked) is not None
    is_right = holders == HOLDERS.get(name, [VICTIM])
    return {
        "case": name,
        "seed": seed,
        "settled s": math.inf if seconds is None else seconds,
        "changes later": worst,
        "holders": len(holders),
        "holds": seconds is not None and seconds <= LIMIT_S and worst <= ALTERNATIONS_MAX and agreed and is_right,
    }


def _changes(log: EventLog, observer: str) -> int:
    return sum(h.observer == observer and h.about == VICTIM for h in log.happenings)


def run(parameters: Parameters) -> Answer:
    """Every case for every size and seed; the worst seed of each is shown."""
    sizes = parameters.members or parameters.pick((3,), (3, 5, 16), (3, 5, 16, 64))
    seeds = parameters.seeds_or(1, 5, 30)
    answer = Answer()
    for n in sizes:
        for name in CASES:
            rows = [case(name, seed, n=n) for seed in seeds]
            worst: dict[str, Any] = max(rows, key=lambda row: (not row["holds"], float(row["settled s"] or 0)))
            answer.rows.append({"n": n, "runs": len(rows), **worst})
    answer.holds = all(row["holds"] for row in answer.rows)
    answer.measured = {
        "slowest to settle s": max(float(row["settled s"] or 0) for row in answer.rows),
        "most changes of mind in the time after": max(int(row["changes later"] or 0) for row in answer.rows),
    }
    return answer


QUESTION = Question(
    "identity",
    "What becomes of a name that moves, restarts, loses its state, is cloned, copied while it runs, held twice or taken "
    "over?",
    "within 15 s every view has exactly one holder, the right one; no view changes it more than twice in the minute after "
    "(above 32 members: until the next state exchange); nobody with a right to the name is locked out; a copy of a running "
    "member changes nothing while neither says anything new; once one does, who is at its address holds the name alone, "
    "and the other has stopped by then",
    run,
)
