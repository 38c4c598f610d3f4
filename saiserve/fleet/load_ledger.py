"""Effective load: what the owner last reported, corrected by what this node itself sent and saw finish.

A report is always a little old, and this node's own requests may or may not be in it. So a report is taken to mean
"others' load = reported − the most this node had there while the report may have been written", and
effective load = others' load + own requests now. Own requests are never counted twice and never forgotten.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from saiserve.engines.messages import Load

SECOND = 1_000_000_000
VITALS_LAG_S = 1.5
"""How long before its arrival a vitals value may have been written: one probe interval and a gossip step."""
REPLY_LAG_S = 0.1
"""A load in a reply was written when it was sent, but may still count requests that end in the same step."""
LOCAL_LAG_S = 0.3
"""An engine reports after each step, and a prefill step may take this long."""


@dataclass(frozen=True, slots=True)
class EffectiveLoad:
    """The load to route by. Rates are tokens per second, 0 = unknown."""

    busy: float = 0.0
    """In lanes, waiting requests included; may exceed `lanes`."""
    lanes: int = 0
    queued_tokens: int = 0
    prefill_rate: float = 0.0
    decode_rate: float = 0.0
    age_s: float = 0.0
    is_reported: bool = False
    """Whether the owner has said anything yet."""


@dataclass(slots=True)
class _Account:
    """One candidate's reports and own requests."""

    load: Load | None = None
    written_at: int = 0
    """The latest moment the report may be out of date by: arrival − lag."""
    arrived_at: int = 0
    others: float = 0.0
    recent_tokens: int = 0
    """Own tokens sent shortly before the report arrived, which it may not contain."""
    own: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Attempt id to (started at, prompt tokens)."""
    since: dict[str, int] = field(default_factory=dict)
    """Prompt tokens of own attempts started after the report arrived."""
    counts: deque[tuple[int, int]] = field(default_factory=deque)
    """(when, own requests from then on), covering the longest lag."""


class LoadLedger:
    """Accounts by candidate id. `now` is int nanoseconds of one clock."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._owner: dict[str, str] = {}

    def report(self, now: int, candidate_id: str, load: Load, *, lag_s: float) -> None:
        """Take the owner's word. A report that may be older than the one at hand is ignored."""
        account = self._accounts.setdefault(candidate_id, _Account())
        written_at = now - int(lag_s * SECOND)
        if account.load is not None and written_at < account.written_at:
            return
        account.load, account.written_at, account.arrived_at = load, written_at, now
        account.others = max(0.0, load.busy + load.queued - _peak(account, written_at))
        recent = sum(tokens for started, tokens in account.own.values() if written_at < started <= now)
        account.recent_tokens = max(0, recent - load.queued_tokens)
        account.since.clear()

    def started(self, now: int, candidate_id: str, tokens: int, attempt: str) -> None:
        """An own attempt goes to the candidate. `tokens`: prompt tokens it will probably have to compute."""
        self.finished(now, attempt)
        account = self._accounts.setdefault(candidate_id, _Account())
        account.own[attempt] = (now, max(0, tokens))
        account.since[attempt] = max(0, tokens)
        self._owner[attempt] = candidate_id
        _count(account, now)

    def finished(self, now: int, attempt: str) -> None:
        """The attempt has ended, however; safe to say twice."""
        candidate_id = self._owner.pop(attempt, None)
        account = self._accounts.get(candidate_id) if candidate_id is not None else None
        if account is not None:
            account.own.pop(attempt, None)
            account.since.pop(attempt, None)
            _count(account, now)

    def effective(self, now: int, candidate_id: str) -> EffectiveLoad:
        """The load to route by at `now`."""
        account = self._accounts.get(candidate_id)
        if account is None:
            return EffectiveLoad()
        load = account.load or Load()
        return EffectiveLoad(
            busy=account.others + len(account.own),
            lanes=load.lanes,
            queued_tokens=_still_queued(account, load, now) + sum(account.since.values()),
            prefill_rate=load.prefill_rate,
            decode_rate=load.decode_rate,
            age_s=max(0.0, (now - account.written_at) / SECOND) if account.load is not None else 0.0,
            is_reported=account.load is not None,
        )

    def forget(self, candidate_ids: set[str]) -> None:
        """Drop the reports of candidates that are gone or began a new life; own attempts there are kept until ended."""
        for candidate_id in candidate_ids & self._accounts.keys():
            if self._accounts[candidate_id].own:
                known = self._accounts[candidate_id]
                self._accounts[candidate_id] = _Account(own=known.own, since=known.since, counts=known.counts)
            else:
                del self._accounts[candidate_id]

    @property
    def in_flight(self) -> int:
        """Own attempts not ended yet, over all candidates."""
        return len(self._owner)


def _still_queued(account: _Account, load: Load, now: int) -> int:
    """Tokens of the report that are probably still to be prefilled: the engine went on at its own rate since."""
    since_s = (now - (account.written_at + account.arrived_at) // 2) / SECOND
    done = max(0.0, since_s) * max(0.0, load.prefill_rate)
    return max(0, round(load.queued_tokens + account.recent_tokens - done))


def _count(account: _Account, now: int) -> None:
    account.counts.append((now, len(account.own)))
    horizon = now - int(VITALS_LAG_S * SECOND)
    while len(account.counts) > 1 and account.counts[1][0] <= horizon:
        account.counts.popleft()


def _peak(account: _Account, since: int) -> int:
    """The most own requests at any moment from `since` on."""
    peak = before = 0
    for when, count in account.counts:
        if when <= since:
            before = count
        else:
            peak = max(peak, count)
    return max(peak, before)
