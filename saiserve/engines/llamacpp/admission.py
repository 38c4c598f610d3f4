"""The order in which jobs get their turn, and how long a newcomer would wait. Pure.

One number orders all: a job's *turn*, its arrival moved earlier by its priority and by being resumed. It never changes,
and later arrivals have later turns, so nobody starves: a job of priority −100 is overtaken only by what arrives within
100 seconds (with resumed work: 1,000) after it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from saiserve.engines.llamacpp.job import Job
from saiserve.engines.waits import NS

RESUMED_EARLIER_S = 1_000
"""Work begun elsewhere goes before new work: somebody is already reading the answer."""
SERVICE_WEIGHT = 0.2
"""Share of the newest job in the running mean of how long a job keeps its lane."""
TYPICAL_ANSWER_TOKENS = 128
"""Length of an answer guessed before any has ended."""


def turn_of(job: Job, now: int) -> int:
    """When a job arriving now has its turn (nanoseconds, lower is earlier)."""
    earlier_s = job.priority + (RESUMED_EARLIER_S if job.is_resumed else 0)
    return now - earlier_s * NS


class Waiting(Protocol):
    """What can stand in a queue."""

    turn: int
    serial: int


W = TypeVar("W", bound=Waiting)


class Queue(Generic[W]):
    """Jobs waiting for a lane, by turn, then by arrival."""

    def __init__(self) -> None:
        self._items: list[tuple[int, int, W]] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[W]:
        return iter([item for _, _, item in self._items])

    def add(self, item: W) -> None:
        """Put a job at its place."""
        insort(self._items, (item.turn, item.serial, item), key=lambda entry: entry[:2])

    def remove(self, item: W) -> None:
        """Take a job out, wherever it stands."""
        self._items = [entry for entry in self._items if entry[2] is not item]


class ServiceTime:
    """How long jobs keep a lane, learned from those that ended."""

    def __init__(self) -> None:
        self._mean_s = 0.0

    def learn(self, elapsed_ns: int) -> None:
        """A job kept its lane this long."""
        elapsed_s = elapsed_ns / NS
        self._mean_s = elapsed_s if self._mean_s == 0 else self._mean_s + SERVICE_WEIGHT * (elapsed_s - self._mean_s)

    def wait_s(self, ahead: int, lanes: int, guess_s: float) -> float:
        """Seconds until a job with `ahead` others before it has a lane; `guess_s` is used until one has ended."""
        return (ahead + 1) * (self._mean_s or guess_s) / lanes
