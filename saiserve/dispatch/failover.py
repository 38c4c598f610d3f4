"""One choice of an answer over all its attempts: holds the tokens so far and says what to do next.

The only judge of retries (docs/failover.md). It is offered slates of candidates and told how attempts ended; it says
`Start`, `Route` (wait, then offer a fresh slate), `Done` or `Fail`. An attempt that a place refused for being busy
changed nothing and does not count against the three; waiting is bounded by time instead. No I/O, no clock here.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from saiserve import limits
from saiserve.dispatch.attempt import NS, Attempt, AttemptState, Deadlines
from saiserve.dispatch.refusals import final_error, own_error, passing_error, upstream_error, with_reason
from saiserve.engines.messages import FinishReason, Generate, RefusalReason, Refused, Tokens
from saiserve.engines.spoken import Spoken
from saiserve.errors import ApiError, ErrorKind
from saiserve.routing.candidate import Candidate, Placement

_BYTES_PER_TOKEN = 4
_WAIT_FIRST = NS // 20
_WAIT_MAX = 2 * NS
_TRACE_MAX = 64

_SAYS_WHY = frozenset({RefusalReason.LOADING, RefusalReason.NO_MODEL})
_ELSEWHERE = frozenset({RefusalReason.BUSY, RefusalReason.LOADING, RefusalReason.DRAINING})

_EXHAUSTED: dict[AttemptState, tuple[ErrorKind, str]] = {
    AttemptState.CUT: (ErrorKind.MODEL_UNAVAILABLE, "the connection to every node that was tried broke; try again"),
    AttemptState.STALLED: (ErrorKind.TIMED_OUT, "the nodes that were tried stopped answering; try again"),
    AttemptState.CRASHED: (ErrorKind.ENGINE_FAILED, "the engines that were tried failed on this request"),
}


@dataclass(frozen=True, slots=True)
class Start:
    """Run this attempt, then report it with `ended`."""

    attempt: Attempt
    candidate: Candidate
    generate: Generate


@dataclass(frozen=True, slots=True)
class Route:
    """Wait until something changed in the fleet, at most until `until`, then `offer` a fresh slate."""

    until: int
    give_up_at: int
    """When the machine will fail for want of a place; whoever stands in line may wait until then."""
    is_busy: bool
    """Whether the wait is for a lane, so that it should stand in line."""


@dataclass(frozen=True, slots=True)
class Done:
    """The choice is complete."""

    reason: FinishReason
    stop_string: str | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """The choice cannot be completed."""

    error: ApiError


Step = Start | Route | Done | Fail


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """How one attempt went, for the log line, the response headers and the ledger."""

    id: str
    candidate: str
    node: str
    state: AttemptState
    detail: str
    tokens: int
    cached_tokens: int


class Failover:
    """The machine of one choice. `template` is its `Generate` without attempt id and resumed tokens."""

    def __init__(self, template: Generate, *, now: int, deadlines: Deadlines | None = None) -> None:
        self.tokens: list[int] = []
        """Every token of the answer so far, wherever it was made."""
        self.is_spoken = False
        """An upstream has begun to answer: nothing can go on from there."""
        self.attempts = 0
        """Attempts that count: all but harmless refusals."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.accepted = False
        self.crashes = 0
        self.trace: list[AttemptRecord] = []
        """The last attempts, oldest first."""
        self._template = template
        self._deadlines = deadlines
        self._slate: tuple[Candidate, ...] = ()
        self._asked: set[str] = set()
        self._failed: dict[str, int] = {}
        self._out: set[str] = set()
        """Upstream candidates that are not asked again."""
        self._told: ApiError | None = None
        """What the last of them said."""
        self._spoken_bytes = 0
        self._spoken_tokens: int | None = None
        self._busy: Refused | None = None
        self._current: Start | None = None
        self._last: Attempt | None = None
        self._starts = 0
        self._is_break = False
        """The current attempt ends because its tokens are added to, not because it is over."""
        self._rounds = 0
        self._served: Candidate | None = None
        self._room = template.max_tokens
        self._crashed_on = ""
        self._suspect_tried = False
        self._queue_until = now + int(limits.QUEUE_S * NS)
        self._patience_until: int | None = None
        self._done: Done | None = None
        self._error: ApiError | None = None

    @property
    def is_suspect(self) -> bool:
        """Whether an engine process crashed under this request."""
        return self.crashes > 0

    @property
    def is_quarantined(self) -> bool:
        """Whether it crashed two engines: its like must not be tried again for a while."""
        return self.crashes >= 2

    @property
    def served_by(self) -> Candidate | None:
        """The last candidate that accepted."""
        return self._served

    @property
    def queue_until(self) -> int:
        """When waiting for a lane ends."""
        return self._queue_until

    def offer(self, slate: tuple[Candidate, ...]) -> None:
        """A fresh ranking, best first; each round asks at most three of it."""
        self._slate, self._asked, self._busy = slate, set(), None

    def fail(self, error: ApiError) -> None:
        """There is no place for it at all, as routing sees it; a started answer keeps waiting for one instead."""
        if not self.accepted and self._error is None:
            refused = self._last.refused if self._last is not None else None
            # A place that said why it does not have the model knows more than routing does.
            is_told = refused is not None and refused.reason in _SAYS_WHY and bool(refused.detail)
            self._error = passing_error(refused) if refused is not None and is_told else error
        self.offer(())

    def take(self, message: Tokens) -> None:
        """Count tokens of the current attempt, already checked by it."""
        self.tokens.extend(message.ids)

    def insert(self, message: Tokens) -> None:
        """Tokens that the entry node puts into the answer: the place that served goes on from there, as no new attempt."""
        self.take(message)
        served = self._served
        assert served is not None
        self._is_break = True
        self._asked.discard(served.id)
        self._slate = (served, *(candidate for candidate in self._slate if candidate.id != served.id))

    def hear(self, message: Spoken) -> None:
        """An upstream said something; how many tokens it was is told at the end only."""
        self.is_spoken = True
        self._spoken_bytes += sum(
            len(getattr(event, "text", getattr(event, "arguments", ""))) for event in message.events
        )

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer so far; of an upstream's by estimate until it has told."""
        if self._spoken_tokens is not None:
            return self._spoken_tokens
        return self._spoken_bytes // _BYTES_PER_TOKEN if self.is_spoken else len(self.tokens)

    def finish(self, done: Done) -> None:
        """The entry node itself ended the answer (a stop string)."""
        self._done = done

    def started(self) -> None:
        """The current attempt was accepted."""
        assert self._current is not None
        accepted = self._current.attempt.accepted
        assert accepted is not None
        if not self.accepted:
            self.prompt_tokens, self.cached_tokens = accepted.prompt_tokens, accepted.cached_tokens
        self.accepted = True
        self._served = self._current.candidate
        self._patience_until = None
        if accepted.max_tokens and self._room is None:
            self._room = accepted.max_tokens

    def decide(self, now: int) -> Step:
        """What to do now that no attempt is running."""
        assert self._current is None, "an attempt is still running"
        if self._done is not None:
            return self._done
        if self._error is not None:
            return Fail(self._error)
        if self.tokens and self._room is not None and len(self.tokens) >= self._room:
            self._done = Done(FinishReason.LENGTH)
            return self._done
        if self.attempts >= limits.ATTEMPTS_MAX:
            return self._give_up(self._exhausted())
        candidate = self._pick(now)
        if candidate is not None:
            return self._start(candidate, now)
        return self._wait(now)

    def ended(self, now: int) -> None:
        """The current attempt is terminal; take what it means."""
        assert self._current is not None
        start, self._current = self._current, None
        attempt, candidate = start.attempt, start.candidate
        assert attempt.is_over
        self._last = attempt
        if not self._is_break:
            self._record(attempt, candidate)
        self._is_break = False
        if attempt.state is AttemptState.FINISHED:
            assert attempt.finished is not None
            if self.is_spoken:
                self._spoken_tokens = attempt.finished.completion_tokens
                self.prompt_tokens = attempt.finished.prompt_tokens or self.prompt_tokens
                self.cached_tokens = attempt.finished.cached_tokens
            elif attempt.tokens == len(self.tokens):
                self.cached_tokens = max(self.cached_tokens, attempt.finished.cached_tokens)
            self._done = self._done or Done(attempt.finished.reason, attempt.finished.stop_string)
        elif attempt.state is AttemptState.REFUSED:
            self._refused(attempt, candidate, now)
        elif attempt.state is not AttemptState.CANCELLED:
            self._broke(attempt, candidate, now)

    def _refused(self, attempt: Attempt, candidate: Candidate, now: int) -> None:
        refused = attempt.refused
        assert refused is not None
        is_long = refused.reason is RefusalReason.LOADING and refused.retry_after_s > limits.FAILOVER_WAIT_S
        if refused.reason in _ELSEWHERE and not is_long:
            self._busy = refused
            return
        told = upstream_error(refused)
        if told is not None:
            self._told = told
            self._out.add(candidate.id)
            return
        error = final_error(refused)
        if error is None or (self.tokens and refused.reason is RefusalReason.TOO_LONG):
            self._failed[candidate.id] = now
            # Whoever names a time beyond our patience is believed: waiting for it here would be of no use.
            if refused.retry_after_s <= limits.FAILOVER_WAIT_S or self.accepted:
                self._be_patient(now)
            return
        self._error = error

    def _broke(self, attempt: Attempt, candidate: Candidate, now: int) -> None:
        self.attempts += 1
        self._failed[candidate.id] = now
        own = own_error(attempt.failed)
        if own is not None:
            self._error = own
            return
        if candidate.placement is Placement.UPSTREAM:
            # Whether it did the work and counts it is unknown: it is not asked to do it twice.
            self._out.add(candidate.id)
            self._told = ApiError(ErrorKind.UPSTREAM_FAILED, _words(attempt))
            return
        self._be_patient(now)
        if attempt.is_suspicious:
            self.crashes += 1
            self._crashed_on = self._crashed_on or candidate.node
        if self.is_suspect and (self._suspect_tried or self.crashes >= 2):
            self._error = ApiError(
                ErrorKind.ENGINE_FAILED, "this request brought an engine down and is not tried any more"
            )

    def _be_patient(self, now: int) -> None:
        if self._patience_until is None:
            self._patience_until = now + int(limits.FAILOVER_WAIT_S * NS)

    def _pick(self, now: int) -> Candidate | None:
        if len(self._asked) >= limits.ATTEMPTS_MAX:
            return None
        asked = self._asked | self._out
        open_ones = [c for c in self._slate if c.id not in asked and self._may_continue(c)]
        fresh = [c for c in open_ones if c.id not in self._failed]
        rested = [c for c in open_ones if now >= self._failed.get(c.id, now) + NS]
        return next(iter(fresh or rested), None)

    def _may_continue(self, candidate: Candidate) -> bool:
        if self.is_suspect and candidate.node == self._crashed_on and self._others_exist():
            return False
        if self.is_spoken:
            return False
        if not self.tokens:
            return True
        served = self._served
        assert served is not None
        if Placement.UPSTREAM in (served.placement, candidate.placement):
            return False
        # Adapters by number are another node's own list: no digest speaks of them.
        digest = b"" if self._template.sampling.lora else candidate.digest
        same = candidate.id == served.id or bool(digest and digest == served.digest)
        return candidate.model == served.model and same

    def _others_exist(self) -> bool:
        """Whether the slate has a node beside the one a suspect crashed on; a fleet of one has to do."""
        return any(candidate.node != self._crashed_on for candidate in self._slate)

    def _start(self, candidate: Candidate, now: int) -> Start:
        self._starts += 1
        self._asked.add(candidate.id)
        is_upstream = candidate.placement is Placement.UPSTREAM
        deadlines = Deadlines.upstream() if is_upstream else self._deadlines
        attempt = Attempt(f"{self._template.id}.{self._starts}", now=now, deadlines=deadlines)
        generate = msgspec.structs.replace(
            self._template,
            id=attempt.id,
            model=candidate.model,
            resume_tokens=tuple(self.tokens),
            suspect=self.is_suspect,
        )
        self._current = Start(attempt, candidate, generate)
        return self._current

    def _wait(self, now: int) -> Step:
        if self._told is not None and (self.is_spoken or self._out.issuperset(c.id for c in self._slate)):
            return self._give_up(self._told)
        busy = self._busy is not None
        until = self._queue_until if busy else self._patience_until or now
        if self.tokens and not self._can_be_continued():
            until = now
        if now >= until:
            return self._give_up(self._busy_error() if busy else self._exhausted())
        self._rounds += 1
        pause = min(_WAIT_MAX, _WAIT_FIRST << min(self._rounds, 8))
        return Route(min(until, now + pause), until, is_busy=busy)

    def _give_up(self, error: ApiError) -> Fail:
        self._error = error
        return Fail(error)

    def _can_be_continued(self) -> bool:
        """Whether any other place could ever go on from these tokens."""
        return self._served is not None and self._served.placement is not Placement.UPSTREAM

    def _busy_error(self) -> ApiError:
        assert self._busy is not None
        return passing_error(self._busy)

    def _exhausted(self) -> ApiError:
        if self._last is None:
            return ApiError(ErrorKind.MODEL_UNAVAILABLE, "no node serves this model now; try again", retry_after_s=1.0)
        if self._last.refused is not None:
            return passing_error(self._last.refused)
        kind, message = _EXHAUSTED[self._last.state]
        again = 1.0 if kind is ErrorKind.MODEL_UNAVAILABLE else None
        return ApiError(kind, with_reason(message, self._last.failed), retry_after_s=again)

    def _record(self, attempt: Attempt, candidate: Candidate) -> None:
        if self.is_suspect and attempt.accepted is not None:
            self._suspect_tried = True
        cached = attempt.accepted.cached_tokens if attempt.accepted else 0
        record = AttemptRecord(
            attempt.id, candidate.id, candidate.node, attempt.state, attempt.detail, attempt.tokens, cached
        )
        self.trace = [*self.trace[1 - _TRACE_MAX :], record]


def _words(attempt: Attempt) -> str:
    """What a broken attempt at an upstream means, in a sentence."""
    return attempt.failed.detail if attempt.failed is not None else f"the upstream did not answer: {attempt.detail}"
