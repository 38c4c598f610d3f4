"""What a node counts of each target, and when it lets one rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from saiserve import limits
from saiserve.engines.messages import Accepted, Failed, FailureKind, Finished, FinishReason, RefusalReason, Refused
from saiserve.engines.spoken import SourceReply
from saiserve.engines.upstream.pool import TargetState
from saiserve.engines.upstream.tally import Outcome
from saiserve.engines.upstream.targets import Target, TargetDialect
from saiserve.engines.waits import NS
from tests.fakes.upstream import (
    MODEL,
    Playback,
    PlaybackUpstream,
    chat_body,
    chat_stream,
    delta,
    front,
    fronting,
    usage,
)
from tests.fakes.upstream import upstream_table as table

JSON = (("content-type", "application/json"),)
HELLO = chat_stream(delta(content="Hi"), delta("stop"), usage(9, 2, 4))
FINISHED = Finished("a", FinishReason.STOP, 2, 9, 4)
BROKEN = Failed("a", FailureKind.INTERNAL, "cut")


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> int:
        return int(self.s * NS)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state(clock: Clock) -> TargetState:
    return TargetState(Target("t", "http://127.0.0.1:1", TargetDialect.OPENAI, {}), clock)


def go(state: TargetState, *replies: SourceReply) -> None:
    with state.visit() as visit:
        for reply in replies:
            visit.heard(state.clock(), reply)


@pytest.mark.parametrize(
    ("replies", "outcome"),
    [
        ((Accepted("a", 9), FINISHED), Outcome.ANSWERED),
        ((Accepted("a", 9), BROKEN), Outcome.FAILED),
        ((Refused("a", RefusalReason.UPSTREAM_FAULT),), Outcome.FAILED),
        ((Refused("a", RefusalReason.RATE_LIMITED),), Outcome.LIMITED),
        ((Refused("a", RefusalReason.UPSTREAM_SAYS_NO),), Outcome.REFUSED),
        ((Refused("a", RefusalReason.UPSTREAM_LACKS),), Outcome.REFUSED),
        ((Refused("a", RefusalReason.TOO_LONG),), Outcome.REFUSED),
        ((Accepted("a", 9),), Outcome.CANCELLED),
        ((), Outcome.CANCELLED),
    ],
)
def test_a_request_ends_in_one_way(state: TargetState, replies: tuple[SourceReply, ...], outcome: Outcome) -> None:
    go(state, *replies)
    assert {kind for kind, count in state.tally.requests.items() if count} == {outcome}
    assert state.running == 0


def test_a_target_that_always_breaks_off_after_its_first_word_rests(state: TargetState, clock: Clock) -> None:
    rested = []
    for _ in range(limits.UPSTREAM_FAULTS_MAX):
        rested.append(state.is_resting)
        go(state, Accepted("a", 9), BROKEN)
    assert [*rested, state.is_resting] == [False] * limits.UPSTREAM_FAULTS_MAX + [True]
    assert state.tally.rests == 1
    clock.s += limits.UPSTREAM_REST_S
    rested = [state.is_resting]
    go(state, Accepted("a", 9), BROKEN)
    assert [*rested, state.is_resting] == [False, True], "one more fault is enough until it has answered"
    assert state.tally.rests == 2
    clock.s += limits.UPSTREAM_REST_S
    go(state, Accepted("a", 9), FINISHED)
    go(state, BROKEN)
    assert not state.is_resting


@pytest.mark.parametrize(("begun", "wait_s"), [(False, limits.UPSTREAM_FIRST_S), (True, limits.UPSTREAM_SILENCE_S)])
def test_a_silence_beyond_patience_is_the_targets_failure(
    state: TargetState, clock: Clock, begun: bool, wait_s: float
) -> None:
    for silence_s in (wait_s - 0.1, wait_s):
        with state.visit() as visit:
            if begun:
                visit.heard(clock(), Accepted("a", 9))
                visit.quiet_since = clock()
            clock.s += silence_s
    assert state.tally.requests[Outcome.CANCELLED] == state.tally.requests[Outcome.FAILED] == 1


def test_a_client_that_reads_slowly_is_not_the_targets_silence(state: TargetState, clock: Clock) -> None:
    with state.visit() as visit:
        visit.heard(clock(), Accepted("a", 9))
        clock.s += 10 * limits.UPSTREAM_SILENCE_S
    assert state.tally.requests[Outcome.CANCELLED] == 1


async def test_metrics_tell_of_each_target(tmp_path: Path) -> None:
    bad, good = PlaybackUpstream([Playback([b"{}"], 500, JSON)]), PlaybackUpstream([Playback([HELLO])])
    async with bad.running(), good.running():
        targets = {
            "bad": table(f"{bad.url}/v1", "openai", models=["broken"]),
            "good": table(f"{good.url}/v1", "openai"),
        }
        async with fronting(front(tmp_path, targets)) as client:
            for model, status in (("broken", 502), (MODEL, 200)) * limits.UPSTREAM_FAULTS_MAX:
                answer = await client.post("/v1/chat/completions", json=chat_body(model=model, stream=True))
                assert answer.status_code == status
            text = (await client.get("/metrics")).text
    told = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("saiserve_upstream_"))
    count = len(good.heard)
    assert told['saiserve_upstream_requests_total{outcome="failed",upstream="bad"}'] == "3.0"
    assert told['saiserve_upstream_requests_total{outcome="answered",upstream="good"}'] == f"{count}.0"
    assert told['saiserve_upstream_tokens_total{kind="prompt",upstream="good"}'] == f"{9 * count}.0"
    assert told['saiserve_upstream_tokens_total{kind="cached",upstream="good"}'] == f"{4 * count}.0"
    assert told['saiserve_upstream_tokens_total{kind="completion",upstream="good"}'] == f"{2 * count}.0"
    assert told['saiserve_upstream_resting{upstream="bad"}'] == "1.0"
    assert told['saiserve_upstream_rests_total{upstream="bad"}'] == "1.0"
    assert told['saiserve_upstream_resting{upstream="good"}'] == "0.0"
    assert told['saiserve_upstream_in_flight{upstream="good"}'] == "0.0"
    assert told['saiserve_upstream_answer_seconds_count{upstream="good"}'] == f"{count}.0"
    assert told['saiserve_upstream_first_word_seconds_count{upstream="bad"}'] == "0.0"


async def test_questions_are_counted_too(tmp_path: Path) -> None:
    play = Playback([b'{"data": [{"index": 0, "embedding": [1.0]}]}'], headers=JSON)
    async with PlaybackUpstream([play]).running() as up:
        targets = {"t": table(f"{up.url}/v1", "openai", models={MODEL: {"capabilities": ["embeddings"]}})}
        async with fronting(front(tmp_path, targets)) as client:
            await client.post("/v1/embeddings", json={"model": MODEL, "input": "a"})
            text = (await client.get("/metrics")).text
    assert 'saiserve_upstream_requests_total{outcome="answered",upstream="t"} 1.0' in text
