"""What can be wrong with a network, as data: latency, loss, bursts, cuts, and what else real ones do."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Protocol

from swimcluster.testing.virtual_time import MICROSECOND, MILLISECOND, SECOND


class Latency(Protocol):
    """One-way delay of one packet."""

    def draw(self, rng: random.Random) -> int:
        """A delay in nanoseconds, above zero."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same delay."""

    ns: int

    def draw(self, rng: random.Random) -> int:
        """Return the delay; draws nothing."""
        return self.ns


@dataclass(frozen=True, slots=True)
class Uniform:
    """Any delay from `low_ns` up to `high_ns`, equally likely."""

    low_ns: int
    high_ns: int

    def draw(self, rng: random.Random) -> int:
        """Draw one delay."""
        return self.low_ns + int((self.high_ns - self.low_ns) * rng.random())


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A long tail: half of the delays are below `median_ns`; `sigma` 0.5 puts 1 % above 3.2 medians."""

    median_ns: int
    sigma: float = 0.5
    cap_ns: int = 10 * SECOND

    def draw(self, rng: random.Random) -> int:
        """Draw one delay."""
        return min(self.cap_ns, max(1, int(self.median_ns * rng.lognormvariate(0.0, self.sigma))))


LAN = Uniform(150 * MICROSECOND, 850 * MICROSECOND)
"""One-way delay inside a room: mean 0.5 ms."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Gilbert–Elliott loss: two states per link, changed packet by packet."""

    enter: float
    """Chance per packet that a good link turns bad."""
    leave: float
    """Chance per packet that a bad link turns good."""
    loss: float = 1.0
    """Loss while bad."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong on the paths from `sources` to `destinations` (None: from or to everybody).

    Several at once add up: losses are independent, delays sum, the smallest MTU rules.
    """

    sources: frozenset[str] | None = None
    destinations: frozenset[str] | None = None
    cut_datagrams: bool = False
    cut_exchanges: bool = False
    loss: float = 0.0
    burst: Burst | None = None
    latency: Latency | None = None
    duplicate: float = 0.0
    reorder: float = 0.0
    """Chance that a packet is held back long enough for later ones to overtake it."""
    reorder_ns: int = 50 * MILLISECOND
    corrupt: float = 0.0
    """Chance that one to three bits of a datagram are flipped."""
    mtu: int | None = None
    """Longer datagrams vanish."""
    exchange_delay_ns: int = 0
    """Added to the reply of every exchange."""
    half_open: float = 0.0
    """Chance that an exchange is accepted and never answered."""
    bytes_per_s: int | None = None
    """Bandwidth of each path for datagrams; what waits for longer than `QUEUE_NS` is dropped."""

    def __repr__(self) -> str:
        """As of any dataclass, but names in order: the text goes into digests, and sets have none that stays."""
        return f"Trouble({', '.join(f'{item.name}={_ordered(getattr(self, item.name))}' for item in fields(self))})"

    def covers(self, source: str, destination: str) -> bool:
        """Whether it lies on this path."""
        return (self.sources is None or source in self.sources) and (
            self.destinations is None or destination in self.destinations
        )


def _ordered(value: object) -> str:
    return f"frozenset({{{', '.join(map(repr, sorted(value)))}}})" if isinstance(value, frozenset) else repr(value)
