"""What a node asked of one target and how that went: numbers for metrics, and the judgement that makes it rest."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from saiserve import limits
from saiserve.engines.messages import Accepted, Failed, Finished, RefusalReason, Refused
from saiserve.engines.spoken import SourceReply
from saiserve.engines.waits import NS, Waits


class Outcome(enum.StrEnum):
    """How one request at a target ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """It found fault with the client's request, or does not serve its kind."""
    LIMITED = "limited"
    """It wants fewer requests."""
    FAILED = "failed"
    """It could not be reached or used, broke off, or fell silent for too long."""
    CANCELLED = "cancelled"
    """The client went away, or the answer was no longer wanted."""


_REFUSALS: Final = {
    RefusalReason.RATE_LIMITED: Outcome.LIMITED,
    RefusalReason.UPSTREAM_FAULT: Outcome.FAILED,
}
TOKEN_KINDS: Final = ("prompt", "cached", "completion")


@dataclass(slots=True)
class Visit:
    """One request at a target: told what is heard and when, it knows how the request ended. Times are nanoseconds."""

    started_at: int
    quiet_since: int | None
    """Since when it is waited for; None while the client keeps us from listening."""
    outcome: Outcome = Outcome.CANCELLED
    first_word_at: int | None = None
    finished: Finished | None = None
    _has_heard: bool = False
    _is_over: bool = False

    def heard(self, now: int, reply: SourceReply) -> None:
        """The target said something."""
        self._has_heard = True
        self.quiet_since = None
        match reply:
            case Accepted():
                self.first_word_at = now
            case Finished():
                self.finished = reply
                self.answered(now)
            case Failed():
                self.ended(Outcome.FAILED)
            case Refused():
                self.ended(_REFUSALS.get(reply.reason, Outcome.REFUSED))

    def answered(self, now: int) -> None:
        """It has answered in full."""
        self.first_word_at = self.first_word_at or now
        self.ended(Outcome.ANSWERED)

    def ended(self, outcome: Outcome) -> None:
        """It is over; only the first end counts."""
        if not self._is_over:
            self.outcome, self._is_over = outcome, True

    def left(self, now: int) -> None:
        """Nobody listens any more: after a silence beyond patience that is the target's failure."""
        patience_s = limits.UPSTREAM_SILENCE_S if self._has_heard else limits.UPSTREAM_FIRST_S
        if self.quiet_since is not None and now - self.quiet_since >= patience_s * NS:
            self.ended(Outcome.FAILED)


@dataclass(slots=True)
class TargetTally:
    """Totals of one target since the node started."""

    requests: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOKEN_KINDS, 0))
    """As the target counted them, of complete answers."""
    rests: int = 0
    """Times it was left alone after faults in a row."""
    first_word: Waits = field(default_factory=Waits)
    answer: Waits = field(default_factory=Waits)

    def add(self, visit: Visit, now: int) -> None:
        """One request is over."""
        self.requests[visit.outcome] += 1
        if visit.first_word_at is not None:
            self.first_word.add(visit.first_word_at - visit.started_at)
        if visit.outcome is Outcome.ANSWERED:
            self.answer.add(now - visit.started_at)
        if visit.finished is not None:
            counts = (visit.finished.prompt_tokens, visit.finished.cached_tokens, visit.finished.completion_tokens)
            for kind, count in zip(TOKEN_KINDS, counts, strict=True):
                self.tokens[kind] += count
