"""One try at one place: a machine that is told what happened and when, and says what it came to.

    QUEUED ──sent──▶ SENT ──accepted──▶ ACCEPTED ──tokens──▶ FIRST_TOKEN ──tokens──▶ STREAMING
                      └─refused─▶ REFUSED    every state: CUT, STALLED, CANCELLED; from SENT on: CRASHED; from ACCEPTED on: FINISHED

Deadlines: connect, then any word from the node, then any sign of life. A verdict DEAD on the member never ends an attempt;
it shortens the wait for the next sign of life, so a stream that moves outranks it. Nothing changes a terminal attempt:
late messages, and messages of other attempts, are ignored. Times are nanoseconds of one clock; no I/O, no clock here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from saiserve import limits
from saiserve.engines.messages import (
    Accepted,
    Failed,
    FailureKind,
    Finished,
    Progress,
    Refused,
    Tokens,
)
from saiserve.engines.spoken import SourceReply, Spoken

NS = 1_000_000_000


class AttemptState(enum.Enum):
    """Where an attempt stands. The last six are terminal."""

    QUEUED = "queued"
    SENT = "sent"
    ACCEPTED = "accepted"
    FIRST_TOKEN = "first_token"  # noqa: S105
    STREAMING = "streaming"
    FINISHED = "finished"
    REFUSED = "refused"
    CUT = "cut"
    STALLED = "stalled"
    CRASHED = "crashed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the attempt is over."""
        return self in _TERMINAL


_TERMINAL = frozenset(
    {
        AttemptState.FINISHED,
        AttemptState.REFUSED,
        AttemptState.CUT,
        AttemptState.STALLED,
        AttemptState.CRASHED,
        AttemptState.CANCELLED,
    }
)

_RUNNING = (AttemptState.ACCEPTED, AttemptState.FIRST_TOKEN, AttemptState.STREAMING)

_NEXT: dict[tuple[AttemptState, type[SourceReply]], AttemptState] = {
    (AttemptState.SENT, Accepted): AttemptState.ACCEPTED,
    (AttemptState.SENT, Refused): AttemptState.REFUSED,
    (AttemptState.SENT, Progress): AttemptState.SENT,
    (AttemptState.SENT, Failed): AttemptState.CRASHED,
    **{(AttemptState.ACCEPTED, said): AttemptState.FIRST_TOKEN for said in (Tokens, Spoken)},
    **{(AttemptState.FIRST_TOKEN, said): AttemptState.STREAMING for said in (Tokens, Spoken)},
    **{(AttemptState.STREAMING, said): AttemptState.STREAMING for said in (Tokens, Spoken)},
    **{(state, Progress): state for state in _RUNNING},
    **{(state, Finished): AttemptState.FINISHED for state in _RUNNING},
    **{(state, Failed): AttemptState.CRASHED for state in _RUNNING},
}
"""What each message leads to; a pair that is missing breaks the protocol, and the attempt is CUT."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Longest waits of one attempt, in nanoseconds."""

    connect: int = int(limits.CONNECT_S * NS)
    accepted: int = int(limits.ACCEPTED_S * NS)
    progress: int = int(limits.PROGRESS_S * NS)
    progress_when_dead: int = int(limits.PROGRESS_WHEN_DEAD_S * NS)

    @staticmethod
    def upstream() -> Deadlines:
        """Those of an upstream: it may say nothing before it has the whole answer, and no member stands for it."""
        silence = int(limits.UPSTREAM_SILENCE_S * NS)
        connect = int(limits.UPSTREAM_CONNECT_S * NS)
        return Deadlines(connect, int(limits.UPSTREAM_FIRST_S * NS), silence, silence)


class Attempt:
    """One attempt of one choice. Feed it what happens; read `state`, `next_deadline()` and how it ended."""

    def __init__(self, id: str, *, now: int, deadlines: Deadlines | None = None) -> None:  # noqa: A002
        self.id = id
        self.state = AttemptState.QUEUED
        self.detail = ""
        """How it ended, for logs and errors."""
        self.accepted: Accepted | None = None
        self.refused: Refused | None = None
        self.finished: Finished | None = None
        self.failed: Failed | None = None
        self.was_sent = False
        """Whether the request may have reached the place."""
        self.tokens = 0
        """Tokens this attempt brought."""
        self._deadlines = deadlines or Deadlines()
        self._since = now
        self._is_dead = False
        self._has_heard = False

    @property
    def is_over(self) -> bool:
        """Whether it is terminal."""
        return self.state.is_terminal

    @property
    def is_broken(self) -> bool:
        """Whether the place or the way to it failed; what fails by its own doing tells nothing of either."""
        if self.failed is not None and self.failed.kind is FailureKind.BAD_REQUEST:
            return False
        return self.state in (AttemptState.CUT, AttemptState.STALLED, AttemptState.CRASHED)

    @property
    def is_suspicious(self) -> bool:
        """Whether an engine process reported that it died under this attempt."""
        return self.failed is not None and self.failed.kind.makes_suspects

    def sent(self, now: int) -> None:
        """The request is on its way."""
        if self.state is AttemptState.QUEUED:
            self.state, self._since, self.was_sent = AttemptState.SENT, now, True

    def receive(self, now: int, message: SourceReply) -> bool:
        """Take a message. True when it is this attempt's and counts; False when it is late, foreign or out of order."""
        if self.is_over or message.id != self.id:
            return False
        after = _NEXT.get((self.state, type(message)))
        if after is None:
            self._end(AttemptState.CUT, f"{type(message).__name__} is not possible when {self.state.value}")
            return False
        self.state, self._since, self._has_heard = after, now, True
        match message:
            case Accepted():
                self.accepted = message
            case Refused():
                self.refused, self.detail = message, f"{message.reason}: {message.detail}"
            case Tokens():
                self.tokens += len(message.ids)
            case Finished():
                self.finished = message
            case Failed():
                self.failed, self.detail = message, f"{message.kind}: {message.detail}"
            case Progress() | Spoken():
                pass
        return True

    def hop_failed(self, *, sent: bool, detail: str) -> None:
        """The way to the place broke. `sent` False: the request certainly never left."""
        if not self.is_over:
            self.was_sent = self.was_sent or sent
            self._end(AttemptState.CUT, detail)

    def member_is_dead(self, is_dead: bool) -> None:
        """The cluster's verdict on the member that serves this, which may be withdrawn."""
        self._is_dead = is_dead

    def reader_caught_up(self, now: int) -> None:
        """The client kept us from listening until now; silence meanwhile was not the place's."""
        if not self.is_over:
            self._since = max(self._since, now)

    def cancel(self) -> None:
        """The client went away, or the answer is complete without the rest."""
        self._end(AttemptState.CANCELLED, "cancelled")

    def advance(self, now: int) -> bool:
        """Let time pass. True when the attempt ended by it."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return False
        waited = f"nothing for {(now - self._since) / NS:.1f} s when {self.state.value}"
        self._end(AttemptState.CUT if self.state is AttemptState.QUEUED else AttemptState.STALLED, waited)
        return True

    def next_deadline(self) -> int | None:
        """When to call `advance`; None when it is over."""
        if self.is_over:
            return None
        if self.state is AttemptState.QUEUED:
            return self._since + self._deadlines.connect
        wait = self._deadlines.progress if self._has_heard else self._deadlines.accepted
        if self._is_dead:
            wait = min(wait, self._deadlines.progress_when_dead)
        return self._since + wait

    def _end(self, state: AttemptState, detail: str) -> None:
        if not self.is_over:
            self.state, self.detail = state, detail
