"""From a schedule that breaks something to a small one that still does (delta debugging, Zeller 2002)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from swimcluster.testing.faults import Fault, Schedule
from swimcluster.testing.network import MILLISECOND

TRIES_MAX = 400
SHORTEST_NS = 50 * MILLISECOND

Fails = Callable[[Schedule], bool]


class _Budget:
    """Runs `fails` a bounded number of times and never twice on the same schedule."""

    def __init__(self, fails: Fails, tries: int) -> None:
        self._fails = fails
        self._seen: dict[Schedule, bool] = {}
        self.left = tries

    def __call__(self, schedule: Schedule) -> bool:
        known = self._seen.get(schedule)
        if known is not None:
            return known
        if self.left <= 0:
            return False
        self.left -= 1
        self._seen[schedule] = self._fails(schedule)
        return self._seen[schedule]


def shrink(schedule: Schedule, fails: Fails, *, tries: int = TRIES_MAX) -> Schedule:
    """The smallest schedule found for which `fails` is still true.

    First faults are dropped, in chunks and then one by one, then each that is left is shortened, until nothing helps
    or `tries` runs were spent. The result is one-minimal when the budget sufficed: no single fault can be left out.

    Raises:
        ValueError: `fails(schedule)` is false to begin with.
    """
    still_fails = _Budget(fails, tries)
    if not still_fails(schedule):
        raise ValueError("the schedule given does not fail, so there is nothing to shrink")
    while True:
        smaller = _simplify(_drop(schedule, still_fails), still_fails)
        if smaller == schedule:
            return schedule
        schedule = smaller


def _drop(schedule: Schedule, still_fails: Fails) -> Schedule:
    size = max(1, len(schedule) // 2)
    while size >= 1 and schedule:
        start, dropped = 0, False
        while start < len(schedule):
            candidate = schedule[:start] + schedule[start + size :]
            if still_fails(candidate):
                schedule, dropped = candidate, True
            else:
                start += size
        if not dropped or size > 1:
            size //= 2
    return schedule


def _simplify(schedule: Schedule, still_fails: Fails) -> Schedule:
    for i in range(len(schedule)):
        for simpler in _simpler(schedule[i]):
            candidate = (*schedule[:i], simpler, *schedule[i + 1 :])
            if still_fails(candidate):
                schedule = candidate
                break
    return schedule


def _simpler(fault: Fault) -> Iterator[Fault]:
    """Gentler forms of one fault, the gentlest first: half as long, a smaller group, half as many."""
    values: dict[str, Any] = {f.name: getattr(fault, f.name) for f in dataclasses.fields(fault)}  # type: ignore[arg-type]
    if fault.for_ns > SHORTEST_NS:
        yield dataclasses.replace(fault, for_ns=max(SHORTEST_NS, fault.for_ns // 2))  # type: ignore[type-var]
    for name, value in values.items():
        if isinstance(value, frozenset) and len(value) > 1:
            yield dataclasses.replace(fault, **{name: frozenset(sorted(value)[: len(value) // 2])})  # type: ignore[type-var]
        elif name == "count" and isinstance(value, int) and value > 1:
            yield dataclasses.replace(fault, count=value // 2)  # type: ignore[type-var]
