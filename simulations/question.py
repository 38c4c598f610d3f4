"""What a simulation is made of: a question, the sizes it is asked at, and an answer with a bound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Size = Literal["quick", "usual", "full"]
Value = str | int | float | bool | None
Row = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Parameters:
    """How a question is asked. What is None is for the question to choose, by `size`."""

    size: Size = "usual"
    """quick: seconds, as in the tests; usual: about a minute or two; full: the size the bound is stated for."""
    members: tuple[int, ...] | None = None
    seeds: tuple[int, ...] | None = None
    ticks: int | None = None
    """Virtual time of each run in tenths of a second, where a question has a length."""
    processes: int = 1

    def pick(self, quick: Any, usual: Any, full: Any) -> Any:
        """One of three values, by size."""
        return {"quick": quick, "usual": usual, "full": full}[self.size]

    def seeds_or(self, quick: int, usual: int, full: int) -> tuple[int, ...]:
        """The seeds asked for, or as many as the size wants, counted from 1."""
        return self.seeds if self.seeds is not None else tuple(range(1, 1 + self.pick(quick, usual, full)))


@dataclass(slots=True)
class Answer:
    """What was found."""

    rows: list[Row] = field(default_factory=list)
    measured: dict[str, Value] = field(default_factory=dict)
    bound: str = ""
    holds: bool = False
    notes: list[str] = field(default_factory=list)
    """What a reader must know to judge the table, and what was not tested."""


@dataclass(frozen=True, slots=True)
class Question:
    """A simulation by name."""

    name: str
    asks: str
    """One sentence."""
    bound: str
    """When the answer is yes."""
    run: Callable[[Parameters], Answer]


@dataclass(frozen=True, slots=True)
class Answered:
    """A question with its answer and the wall time it took."""

    question: Question
    parameters: Parameters
    answer: Answer
    seconds: float

    def as_object(self) -> dict[str, Any]:
        """The form of `--json`, which has no infinity: what never came about is null."""
        asked = self.parameters
        return {
            "scenario": self.question.name,
            "parameters": {
                "size": asked.size,
                "members": asked.members,
                "seeds": asked.seeds if asked.seeds is None or len(asked.seeds) < 20 else _span(asked.seeds),
                "ticks": asked.ticks,
            },
            "measured": _finite(self.answer.measured),
            "rows": [_finite(row) for row in self.answer.rows],
            "bound": self.answer.bound or self.question.bound,
            "holds": self.answer.holds,
            "seconds": round(self.seconds, 2),
        }


def _finite(row: Row) -> Row:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()
    }


def _span(seeds: tuple[int, ...]) -> str:
    return f"{seeds[0]}:{seeds[-1] + 1}"


def ask(question: Question, parameters: Parameters) -> Answered:
    """Answer one question."""
    start = time.perf_counter()
    answer = question.run(parameters)
    return Answered(question, parameters, answer, time.perf_counter() - start)


def table(rows: list[Row]) -> str:
    """Rows as text in aligned columns, in the order in which fields first come; numbers to four places."""
    if not rows:
        return "(no rows)"
    heads = list(dict.fromkeys(head for row in rows for head in row))
    lines = [heads, *[[_cell(row.get(head)) for head in heads] for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([text[0], "  ".join("-" * width for width in widths), *text[1:]])


def _cell(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
