"""How much is measured: a whole run, or a quick one that only shows that all works."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.engine.rows import Row
from benchmarks.engine.servers import Setup, ours, theirs
from saiserve.bench.client import Client


@dataclass(frozen=True)
class Scale:
    """Sizes of one run."""

    quick: bool = False
    rounds: int | None = None
    """Rounds in turn; None: each experiment's own."""

    def pick(self, whole: int, quick: int) -> int:
        """A size."""
        return quick if self.quick else whole

    def turns(self, whole: int) -> int:
        """Rounds of an experiment."""
        return self.rounds or self.pick(whole, 1)


@dataclass(frozen=True)
class Experiment:
    """Something to measure; gives one or more rows for a model (smol or gemma)."""

    name: str
    measure: Callable[[str, Scale], Awaitable[list[Row]]]


@asynccontextmanager
async def both(setup: Setup) -> AsyncIterator[tuple[Client, Client]]:
    """Both servers, running side by side; only one is asked at a time."""
    async with theirs(setup) as other, ours(setup) as mine:
        yield mine, other


def order(number: int, mine: Client, other: Client) -> list[tuple[bool, Client]]:
    """Which client goes first in a round: they take turns."""
    pair = [(True, mine), (False, other)]
    return pair if number % 2 == 0 else pair[::-1]
