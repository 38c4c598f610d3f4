"""One attempt: what each message leads to, and how long each silence may be."""

from __future__ import annotations

import pytest

from saiserve.dispatch.attempt import NS, Attempt, AttemptState
from saiserve.engines.messages import (
    Accepted,
    EngineReply,
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    Progress,
    RefusalReason,
    Refused,
    Tokens,
)

ACCEPTED = Accepted("x", 5)
TOKENS = Tokens("x", (1,), b"a")
FINISHED = Finished("x", FinishReason.STOP, 1)
REFUSED = Refused("x", RefusalReason.BUSY)
CRASHED = Failed("x", FailureKind.CRASH)
PROGRESS = Progress("x", 0)


def after(*messages: EngineReply, sent: bool = True) -> Attempt:
    attempt = Attempt("x", now=0)
    if sent:
        attempt.sent(0)
    for message in messages:
        attempt.receive(0, message)
    return attempt


@pytest.mark.parametrize(
    ("messages", "state"),
    [
        ([], AttemptState.SENT),
        ([PROGRESS], AttemptState.SENT),
        ([REFUSED], AttemptState.REFUSED),
        ([PROGRESS, ACCEPTED], AttemptState.ACCEPTED),
        ([ACCEPTED, PROGRESS], AttemptState.ACCEPTED),
        ([ACCEPTED, TOKENS], AttemptState.FIRST_TOKEN),
        ([ACCEPTED, TOKENS, TOKENS, PROGRESS], AttemptState.STREAMING),
        ([ACCEPTED, FINISHED], AttemptState.FINISHED),
        ([ACCEPTED, TOKENS, FINISHED, CRASHED], AttemptState.FINISHED),
        ([ACCEPTED, CRASHED], AttemptState.CRASHED),
        ([CRASHED], AttemptState.CRASHED),
        ([TOKENS], AttemptState.CUT),
        ([FINISHED], AttemptState.CUT),
        ([ACCEPTED, ACCEPTED], AttemptState.CUT),
        ([ACCEPTED, REFUSED], AttemptState.CUT),
    ],
)
def test_messages_lead_where_the_table_says_and_nowhere_else(messages: list[EngineReply], state: AttemptState) -> None:
    assert after(*messages).state is state


def test_nothing_can_be_received_before_it_was_sent() -> None:
    assert after(ACCEPTED, sent=False).state is AttemptState.CUT


@pytest.mark.parametrize(
    ("attempt", "silence_s", "state"),
    [
        (after(sent=False), 1, AttemptState.CUT),
        (after(), 2, AttemptState.STALLED),
        (after(PROGRESS), 10, AttemptState.STALLED),
        (after(ACCEPTED), 10, AttemptState.STALLED),
        (after(ACCEPTED, TOKENS), 10, AttemptState.STALLED),
    ],
)
def test_each_silence_has_its_limit(attempt: Attempt, silence_s: int, state: AttemptState) -> None:
    assert not attempt.advance(silence_s * NS - 1)
    assert attempt.advance(silence_s * NS)
    assert attempt.state is state


def test_a_verdict_of_death_that_is_withdrawn_gives_the_time_back() -> None:
    attempt = after(ACCEPTED)
    attempt.member_is_dead(True)
    assert attempt.next_deadline() == 2 * NS
    attempt.member_is_dead(False)
    assert attempt.next_deadline() == 10 * NS


@pytest.mark.parametrize(
    ("kind", "suspicious"), [("crash", True), ("hang", True), ("unloaded", False), ("internal", False)]
)
def test_only_reported_crashes_and_hangs_make_suspects(kind: str, suspicious: bool) -> None:
    assert after(ACCEPTED, Failed("x", FailureKind(kind))).is_suspicious is suspicious
