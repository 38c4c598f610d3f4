"""How long a suspect may take to refute (SWIM §4.2; Lifeguard, LHA-Suspicion; docs/protocol.md, suspicion)."""

from __future__ import annotations

import math

from swimcluster.config import Config

MILLISECOND = 1_000_000


def minimum_ns(config: Config, members: int) -> int:
    """Return the shortest suspicion, nanoseconds: alpha x max(1, log10 n) x probe interval.

    Args:
        members: live members including this one, at least 1.
    """
    scale = max(1.0, math.log10(max(1, members)))
    return _whole_ms(config.suspicion_mult * scale * config.probe_interval_s)


def maximum_ns(config: Config, members: int) -> int:
    """Return the longest suspicion, nanoseconds: beta times the shortest."""
    return _whole_ms(config.suspicion_max_mult * minimum_ns(config, members) / 1e9)


def needed_confirmations(config: Config, members: int) -> int:
    """Return K: how many further accusers bring a suspicion to its minimum. No more than can exist: n - 2."""
    return max(0, min(config.confirmations, members - 2))


def timeout_ns(minimum: int, maximum: int, needed: int, confirmed: int) -> int:
    """Return the suspicion time-out, nanoseconds, after `confirmed` further accusers of `needed`.

    Falls with the logarithm of the confirmations from `maximum` to `minimum`; `minimum` when none can come.
    """
    if needed <= 0:
        return minimum
    share = math.log(confirmed + 1) / math.log(needed + 1)
    return max(minimum, _whole_ms((maximum - (maximum - minimum) * share) / 1e9))


def _whole_ms(seconds: float) -> int:
    # Whole milliseconds: the last bits of a platform's logarithm must not change a run.
    return round(seconds * 1000) * MILLISECOND


class Suspicion:
    """A running suspicion: who accuses, since when, until when."""

    __slots__ = ("accusers", "deadline", "maximum", "minimum", "needed", "started_at")

    def __init__(self, config: Config, *, now: int, members: int, accuser: str) -> None:
        self.started_at = now
        self.minimum = minimum_ns(config, members)
        self.maximum = maximum_ns(config, members)
        self.needed = needed_confirmations(config, members)
        self.accusers: list[str] = [accuser] if accuser else []
        self.deadline = now + timeout_ns(self.minimum, self.maximum, self.needed, 0)

    def confirm(self, accuser: str) -> bool:
        """Count a further accuser; True when it is new and was needed. The deadline only ever comes nearer."""
        if not accuser or accuser in self.accusers or len(self.accusers) > self.needed:
            return False
        self.accusers.append(accuser)
        confirmed = len(self.accusers) - 1
        wanted = self.started_at + timeout_ns(self.minimum, self.maximum, self.needed, confirmed)
        self.deadline = min(self.deadline, wanted)
        return True

    def extend(self, gap: int) -> None:
        """Give the suspect a gap of this node's own clock on top."""
        self.started_at += gap
        self.deadline += gap
