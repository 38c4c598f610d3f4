"""What a measurement comes to: rows with a figure of each side, a ratio, its spread and whether the bound holds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One line of the table. `ratio` is ours to theirs, or the figure itself where the bound is a time or a share."""

    name: str
    unit: str
    ours: float | None
    theirs: float | None
    ratio: float
    spread: tuple[float, float]
    """Least and greatest of the rounds."""
    bound: float | None
    """None for a figure that is only shown."""
    at_least: bool
    """Whether the bound is the least allowed rather than the most."""

    @property
    def holds(self) -> bool | None:
        """Whether the ratio keeps the bound."""
        if self.bound is None:
            return None
        return self.ratio >= self.bound if self.at_least else self.ratio <= self.bound


def compare(
    name: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    bound: float | None,
    *,
    at_least: bool,
) -> Row:
    """A row from one figure of each side per round; the ratio is the median of the rounds'."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    middle = statistics.median
    return Row(name, unit, middle(ours), middle(theirs), middle(ratios), (min(ratios), max(ratios)), bound, at_least)


def absolute(name: str, unit: str, values: Sequence[float], bound: float | None, *, at_least: bool = False) -> Row:
    """A row of a figure that is bounded itself."""
    middle = statistics.median(values)
    return Row(name, unit, middle, None, middle, (min(values), max(values)), bound, at_least)


def render(rows: Sequence[Row], *, head: bool = True) -> str:
    """The table as text."""
    lines = [f"{'':58} {'ours':>8} {'theirs':>8} {'ratio':>7} {'rounds':>15} {'bound':>7}  holds"] if head else []
    for row in rows:
        spread = f"{_text(row.spread[0])} .. {_text(row.spread[1])}"
        bound = "-" if row.bound is None else f"{'>=' if row.at_least else '<='} {row.bound:g}"
        verdict = "-" if row.holds is None else "yes" if row.holds else "NO"
        lines.append(
            f"{f'{row.name}, {row.unit}':58} {_text(row.ours):>8} {_text(row.theirs):>8} {_text(row.ratio):>7} "
            f"{spread:>15} {bound:>7}  {verdict}"
        )
    return "\n".join(lines)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def as_json(row: Row) -> dict[str, Any]:
    """A row for JSON."""
    return {
        "name": row.name,
        "unit": row.unit,
        "ours": row.ours,
        "theirs": row.theirs,
        "ratio": round(row.ratio, 4),
        "spread": [round(end, 4) for end in row.spread],
        "bound": row.bound,
        "at_least": row.at_least,
        "holds": row.holds,
    }
