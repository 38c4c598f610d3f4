"""From what was measured to rows with a figure of each side, their ratio, its spread and whether the bound holds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.ranks import p99

Numbers = list[float]
Lives = Sequence[dict[str, Any]]
"""What `benchmarks.membership.life` printed, one per round."""


@dataclass(frozen=True)
class Row:
    """One line of the table. Figures are infinite where something did not come about within the limit."""

    name: str
    unit: str
    ours: float | None
    theirs: float | None
    ratio: float | None
    spread: tuple[float, float] | None
    """Least and greatest ratio of one round."""
    bound: float | None
    """Greatest ratio allowed; None for a figure that is only shown."""
    holds: bool | None


def _flat(values: Iterable[Any]) -> Numbers:
    """Return all numbers of nested lists; None, "not within the limit", is infinite."""
    flat: Numbers = []
    for value in values:
        flat += _flat(value) if isinstance(value, list) else [math.inf if value is None else float(value)]
    return flat


def _everyone(values: Iterable[Any]) -> Numbers:
    """Return when the last one knew, for each observation."""
    return [max(_flat([value])) for value in values]


def _last(life: dict[str, Any]) -> Numbers:
    return [max(_flat(life["join"]))]


@dataclass(frozen=True)
class Measure:
    """How one figure comes out of lives, and the greatest ratio allowed."""

    name: str
    unit: str
    observations: Callable[[dict[str, Any]], Numbers]
    bound: float | None
    summary: Callable[[Numbers], float] = statistics.median


WITHIN_5_PERCENT = 1.05
BEATEN = 0.999
"""Any ratio below 1: ours is the smaller one."""

MEASURES = (
    Measure("join to full view, all at once", "s", _last, None),
    Measure("kill -9 to everyone knowing, median", "s", lambda life: _everyone(life["kill"]), WITHIN_5_PERCENT),
    Measure("kill -9 to everyone knowing, p99", "s", lambda life: _everyone(life["kill"]), WITHIN_5_PERCENT, p99),
    Measure("kill -9 to one knowing, p99", "s", lambda life: _flat(life["kill"]), WITHIN_5_PERCENT, p99),
    Measure("metadata to everyone, median", "s", lambda life: _everyone(life["metadata"]), WITHIN_5_PERCENT),
    Measure("metadata to one, p99", "s", lambda life: _flat(life["metadata"]), WITHIN_5_PERCENT, p99),
    Measure("address change, at once", "s", lambda life: _flat(life["moved"]), BEATEN),
    Measure("address change, after death", "s", lambda life: _flat(life["moved_after_death"]), BEATEN),
    Measure("lost state, same address", "s", lambda life: _flat(life["lost_state"]), BEATEN),
    Measure("processor per member-minute", "s", lambda life: [life["cpu_s_per_member_minute"]], 4.0),
    Measure("traffic per member-second", "bytes", lambda life: _flat([life["bytes_per_member_second"]]), None),
)


def row(measure: Measure, ours: Lives, theirs: Lives) -> Row:
    """Return one line; a side without any finite observation is compared by the limit it passed."""

    def figure(lives: Lives) -> float:
        return measure.summary([number for life in lives for number in measure.observations(life)])

    mine, other = figure(ours), figure(theirs)
    if math.isinf(mine) and math.isinf(other):
        return Row(measure.name, measure.unit, mine, other, None, None, measure.bound, None)
    pairs = [(figure([a]), figure([b])) for a, b in zip(ours, theirs, strict=True)]
    ratios = [_ratio(a, b) for a, b in pairs]
    ratio = _ratio(mine, other)
    holds = None if measure.bound is None else ratio <= measure.bound
    return Row(measure.name, measure.unit, mine, other, ratio, (min(ratios), max(ratios)), measure.bound, holds)


def _ratio(ours: float, theirs: float) -> float:
    if math.isinf(ours):
        return math.inf
    return ours / theirs if theirs else math.inf


def rows(ours: Lives, theirs: Lives) -> list[Row]:
    """Return the whole table."""
    return [row(measure, ours, theirs) for measure in MEASURES]


def _text(value: float | None) -> str:
    if value is None:
        return "-"
    return "never" if math.isinf(value) else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def render(table: Sequence[Row], limit_s: float) -> str:
    """Return the table as text; `limit_s` is how long a returning member was waited for."""
    lines = [f"{'':36} {'ours':>8} {'kinship':>8} {'ratio':>7} {'per round':>15} {'bound':>6}  holds"]
    for item in table:
        spread = "-" if item.spread is None else f"{_text(item.spread[0])} .. {_text(item.spread[1])}"
        bound = "-" if item.bound is None else "< 1" if item.bound == BEATEN else f"{item.bound:g}"
        verdict = "-" if item.holds is None else "yes" if item.holds else "NO"
        name = f"{item.name}, {item.unit}"
        lines.append(
            f"{name:36} {_text(item.ours):>8} {_text(item.theirs):>8} {_text(item.ratio):>7} {spread:>15} {bound:>6}  {verdict}"
        )
    lines.append(f"never: not within {limit_s:g} s for a returning member")
    return "\n".join(lines)


def as_json(item: Row) -> dict[str, Any]:
    """Return a row for JSON, which has no infinity: such a figure is null."""

    def finite(value: float | None) -> float | None:
        return None if value is None or math.isinf(value) else round(value, 4)

    return {
        "name": item.name,
        "unit": item.unit,
        "ours": finite(item.ours),
        "theirs": finite(item.theirs),
        "ratio": finite(item.ratio),
        "spread": None if item.spread is None else [finite(end) for end in item.spread],
        "bound": item.bound,
        "holds": item.holds,
    }
