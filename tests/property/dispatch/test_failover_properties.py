"""Whatever comes in whatever order: one end, three attempts at most, no token lost or repeated."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from saiserve import limits
from saiserve.dispatch.attempt import NS, Attempt, AttemptState
from saiserve.dispatch.failover import Done, Fail, Failover, Route, Start
from saiserve.engines.messages import (
    Accepted,
    EngineReply,
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    Generate,
    Progress,
    Prompt,
    RefusalReason,
    Refused,
    Sampling,
    Tokens,
)
from saiserve.routing.candidate import Candidate, Placement, Residence

ANSWER = tuple(range(100, 124))


def messages(id: str) -> st.SearchStrategy[EngineReply]:  # noqa: A002
    return st.one_of(
        st.builds(Accepted, st.just(id), st.just(5)),
        st.builds(Refused, st.just(id), st.sampled_from(RefusalReason)),
        st.builds(Progress, st.just(id), st.just(1)),
        st.builds(Tokens, st.just(id), st.just((1, 2)), st.just(b"ab")),
        st.builds(Finished, st.just(id), st.sampled_from(FinishReason), st.just(2)),
        st.builds(Failed, st.just(id), st.sampled_from(FailureKind)),
    )


inputs = st.lists(
    st.one_of(
        messages("x"),
        messages("other"),
        st.sampled_from(["sent", "cut", "cancel", "dead", "alive", "read"]),
        st.integers(0, 12 * NS),
    ),
    max_size=30,
)


@given(inputs)
def test_an_attempt_ends_once_and_nothing_changes_it_afterwards(events: list[EngineReply | str | int]) -> None:
    now = 0
    attempt = Attempt("x", now=now)
    ended: tuple[object, ...] | None = None
    for event in events:
        was_over = attempt.is_over
        counted = feed(attempt, event, now)
        now += event if isinstance(event, int) else 0
        assert not (was_over and counted)
        picture = (attempt.state, attempt.detail, attempt.tokens, attempt.refused, attempt.finished, attempt.failed)
        if ended is not None:
            assert picture == ended
        if attempt.is_over:
            ended = picture
            assert attempt.next_deadline() is None
        else:
            assert attempt.next_deadline() is not None
    now += 60 * NS
    attempt.advance(now)
    assert attempt.is_over, "an attempt that is left alone ends by itself"


def feed(attempt: Attempt, event: EngineReply | str | int, now: int) -> bool:
    match event:
        case int():
            attempt.advance(now + event)
        case "sent":
            attempt.sent(now)
        case "cut":
            attempt.hop_failed(sent=True, detail="cut")
        case "cancel":
            attempt.cancel()
        case "dead" | "alive":
            attempt.member_is_dead(event == "dead")
        case "read":
            attempt.reader_caught_up(now)
        case str():
            raise AssertionError(event)
        case _:
            return attempt.receive(now, event)
    return False


@given(gaps=st.lists(st.integers(1, int(1.9 * NS)), max_size=40), dead_from=st.integers(0, 40))
def test_progress_outranks_a_verdict_of_death(gaps: list[int], dead_from: int) -> None:
    now = 0
    attempt = Attempt("x", now=now)
    attempt.sent(now)
    attempt.receive(now, Accepted("x", 5))
    for index, gap in enumerate(gaps):
        attempt.member_is_dead(index >= dead_from)
        now += gap
        assert not attempt.advance(now)
        attempt.receive(now, Progress("x", 0))
    attempt.member_is_dead(True)
    assert attempt.advance(now + int(limits.PROGRESS_WHEN_DEAD_S * NS))
    assert attempt.state is AttemptState.STALLED


@settings(max_examples=300)
@given(data=st.data())
def test_every_story_ends_once_with_three_attempts_at_most_and_no_token_lost_or_repeated(data: st.DataObject) -> None:
    machine = Failover(Generate("c", "m", Prompt(text="p"), Sampling(seed=1), max_tokens=len(ANSWER)), now=0)
    names = data.draw(st.lists(st.sampled_from("abcde"), unique=True, max_size=5))
    digests = {name: data.draw(st.sampled_from([b"same0000", b"other000", b""])) for name in names}
    slate = tuple(candidate(name, digests[name]) for name in names)
    machine.offer(slate)
    now, broken, rounds = 0, 0, 0
    while True:
        step = machine.decide(now)
        if isinstance(step, Start):
            now += data.draw(st.integers(0, NS))
            assert step.generate.resume_tokens == tuple(machine.tokens) == ANSWER[: len(machine.tokens)]
            check_law(machine, step, machine.served_by, slate)
            live_one(data, machine, step, now)
            broken += step.attempt.is_broken
            machine.ended(now)
        elif isinstance(step, Route):
            rounds += 1
            assert now < step.until <= step.give_up_at
            now = data.draw(st.integers(now, step.until)) if rounds < 5 else step.give_up_at
            machine.offer(slate)
        else:
            break
    assert broken <= limits.ATTEMPTS_MAX
    assert machine.attempts == broken
    assert len({a.id for a in machine.trace}) == len(machine.trace)
    assert tuple(machine.tokens) == ANSWER[: len(machine.tokens)]
    if isinstance(step, Done):
        assert tuple(machine.tokens) == ANSWER
    assert isinstance(step, Done | Fail)
    assert machine.decide(now) == step


def live_one(data: st.DataObject, machine: Failover, step: Start, now: int) -> None:
    """One attempt's life: refused, or some of the right tokens and then an end of some kind."""
    attempt = step.attempt
    end = data.draw(st.sampled_from(["busy", "connect", "cut", "stall", "crash", "internal", "finish", "refuse"]))
    if end == "connect":
        attempt.hop_failed(sent=False, detail="refused")
        return
    attempt.sent(now)
    if end in ("busy", "refuse"):
        reason = RefusalReason.BUSY if end == "busy" else data.draw(st.sampled_from(RefusalReason))
        attempt.receive(now, Refused(attempt.id, reason))
        return
    attempt.receive(now, Accepted(attempt.id, 5))
    machine.started()
    start = len(step.generate.resume_tokens)
    stop = len(ANSWER) if end == "finish" else data.draw(st.integers(start, len(ANSWER)))
    for token in ANSWER[start:stop]:
        message = Tokens(attempt.id, (token,), b"x")
        assert attempt.receive(now, message)
        machine.take(message)
        assert not attempt.receive(now, Tokens(f"{attempt.id}-late", (7,), b"late"))
    match end:
        case "finish":
            attempt.receive(now, Finished(attempt.id, FinishReason.LENGTH, len(ANSWER)))
        case "cut":
            attempt.hop_failed(sent=True, detail="cut")
        case "stall":
            attempt.advance(now + 11 * NS)
        case "crash":
            attempt.receive(now, Failed(attempt.id, FailureKind.CRASH))
        case "internal":
            attempt.receive(now, Failed(attempt.id, FailureKind.INTERNAL))


def check_law(machine: Failover, step: Start, served: Candidate | None, slate: tuple[Candidate, ...]) -> None:
    """Answers go on only where the same model lives; suspects go to one other node."""
    if step.generate.resume_tokens:
        assert served is not None
        same = step.candidate.digest == served.digest != b""
        assert same or step.candidate.id == served.id
    if step.generate.suspect:
        crashed = [a for a in machine.trace if a.state is AttemptState.CRASHED and "crash" in a.detail]
        assert step.candidate.node != crashed[0].node or len(slate) == 1
        assert machine.crashes == 1


def candidate(name: str, digest: bytes) -> Candidate:
    return Candidate(f"{name}/m", name, "m", Placement.PEER, Residence.READY, True, digest=digest)
