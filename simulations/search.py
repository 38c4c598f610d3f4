"""Random fault schedules by seed: no invariant may break, and after calm all views must become one."""

from __future__ import annotations

import datetime
from functools import partial

from simulations.question import Answer, Parameters, Question
from swimcluster.testing.chaos import ChaosRun, chaos
from swimcluster.testing.coverage import merged
from swimcluster.testing.faults import Schedule, describe
from swimcluster.testing.search import search
from swimcluster.testing.shrink import shrink

MUST_HAPPEN = (
    "fault:Crash",
    "fault:Pause",
    "fault:Weather",
    "fault:Cut",
    "fault:Partition",
    "event:MemberSuspected",
    "event:MemberDied",
    "event:MemberJoined",
    "network:lost",
    "network:cut",
)
SHRINK_TRIES = 80
BAND_SEEDS = 32
BAND_TICKS = 5000
"""A band of seeds at this length, of which more than half is trouble, is about a minute of one processor."""
BANDS = 3650
BAND_FROM = 100_000


def band_of(day: datetime.date) -> range:
    """The seeds of a day: other ones each day for ten years, none of which the other sizes use."""
    first = BAND_FROM + BAND_SEEDS * (day.toordinal() % BANDS)
    return range(first, first + BAND_SEEDS)


def run(parameters: Parameters) -> Answer:
    """Search the seeds; the first that breaks something is shrunk and told."""
    seeds = parameters.seeds_or(8, 40, 4096)
    ticks: int = parameters.ticks or parameters.pick(900, 2000, 5000)
    task = partial(chaos, ticks=ticks)
    outcomes = list(search(task, seeds, processes=parameters.processes, stop_at=5))
    broken = [outcome for outcome in outcomes if not outcome.clean]
    coverage = merged(outcome.coverage for outcome in outcomes)
    missing = [name for name in MUST_HAPPEN if not coverage.get(name)]
    answer = Answer(holds=not broken and not missing)
    answer.rows = [{"counter": name, "count": count} for name, count in coverage.items()]
    answer.measured = {"seeds": len(outcomes), "ticks": ticks, "seeds with violations": len(broken)}
    for outcome in broken:
        answer.notes.append(f"seed {outcome.seed}: " + "\n  ".join(outcome.violations))
    if missing:
        answer.notes.append(f"the run was too small to mean anything: {', '.join(missing)} never happened")
    if broken and parameters.size != "quick":
        answer.notes.append(_shrunk(broken[0].seed, ticks))
    return answer


def _shrunk(seed: int, ticks: int) -> str:
    def fails(schedule: Schedule) -> bool:
        return not chaos(seed, ticks=ticks, schedule=schedule).clean

    whole = ChaosRun(seed, ticks=ticks).schedule
    smallest = shrink(whole, fails, tries=SHRINK_TRIES)
    lines = "\n  ".join(describe(fault) for fault in smallest) or "(no fault at all)"
    return f"seed {seed} shrunk from {len(whole)} faults to {len(smallest)}:\n  {lines}"


QUESTION = Question(
    "search",
    "Does any random schedule of faults break an invariant, or keep the views apart after calm?",
    "no violation in any seed; `--seeds A:B --ticks T`, a tick is 100 ms of virtual time (full: 4096 seeds of 5000)",
    run,
)
