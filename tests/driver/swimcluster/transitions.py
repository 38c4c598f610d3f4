"""Whether sampled views changed only as docs/protocol.md promises (its invariants, and P30's shortest suspicion)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

Sample = tuple[float, dict[str, dict[str, Any]]]
STATES = ("ALIVE", "SUSPECT", "DEAD", "LEFT")
SLACK_S = 0.6
"""Two samples and the way of the news."""


def claim(fact: dict[str, Any]) -> tuple[int, str, int, int]:
    """Return what precedence compares."""
    return fact["epoch"], fact["instance"], fact["incarnation"], STATES.index(fact["state"])


def count(histories: dict[str, Sequence[Sample]]) -> Counter[str]:
    """Return how often each step from one state to another was sampled, to show that a run was not empty."""
    steps: Counter[str] = Counter()
    for samples in histories.values():
        held: dict[str, str] = {}
        for _, view in samples:
            for name, fact in view.items():
                before = held.get(name, fact["state"])
                if before != fact["state"]:
                    steps[f"{before} → {fact['state']}"] += 1
                held[name] = fact["state"]
    return steps


def faults(histories: dict[str, Sequence[Sample]], *, suspicion_min_s: float) -> list[str]:
    """Return every broken promise as a sentence; `histories` are samples (time, view) by observer, oldest first."""
    found = [fault for observer, samples in histories.items() for fault in _of_one(observer, samples)]
    return [*found, *_two_contents(histories), *_hasty_deaths(histories, suspicion_min_s)]


def _of_one(observer: str, samples: Sequence[Sample]) -> list[str]:
    found, held, left = [], {}, set()
    for at, view in samples:
        if view[observer]["state"] != "ALIVE":
            found.append(f"{at:.2f} {observer} is {view[observer]['state']} to itself")
        for name, fact in view.items():
            now, life = claim(fact), (name, fact["epoch"], fact["instance"])
            before = held.get(name, now)
            if now < before:
                found.append(f"{at:.2f} {observer}: {name} fell from {before} to {now}")
            if life in left and fact["state"] == "DEAD":
                found.append(f"{at:.2f} {observer}: {name} left and was reported as failed")
            if fact["state"] == "LEFT":
                left.add(life)
            held[name] = now
    return found


def _two_contents(histories: dict[str, Sequence[Sample]]) -> list[str]:
    contents: dict[tuple[str, ...], set[tuple[str, str]]] = {}
    for samples in histories.values():
        for _, view in samples:
            for name, fact in view.items():
                version = (name, *map(str, fact["words"]))
                contents.setdefault(version, set()).add((fact["address"], fact["metadata"]))
    return [f"{version} has {what}" for version, what in contents.items() if len(what) > 1]


def _hasty_deaths(histories: dict[str, Sequence[Sample]], suspicion_min_s: float) -> list[str]:
    """Each death was a suspicion before, somewhere, for the shortest time a suspicion may last."""
    suspected: dict[tuple[str, int, str, int], float] = {}
    died: dict[tuple[str, int, str, int], float] = {}
    for samples in histories.values():
        for at, view in samples:
            for name, fact in view.items():
                version = (name, fact["epoch"], fact["instance"], fact["incarnation"])
                when = {"SUSPECT": suspected, "DEAD": died}.get(fact["state"])
                if when is not None:
                    when[version] = min(at, when.get(version, at))
    found = []
    for version, at in died.items():
        since = suspected.get(version)
        if since is None:
            found.append(f"{version[0]} died without ever being suspected")
        elif at - since < suspicion_min_s - SLACK_S:
            found.append(f"{version[0]} died {at - since:.2f} s after it was suspected")
    return found
