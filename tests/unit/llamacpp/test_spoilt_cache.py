"""NaN in the cache must not last: whoever left it there gets an error, and nobody else notices."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from saiserve.engines.llamacpp.answer import Answer
from saiserve.engines.llamacpp.batch_arrays import Logits
from saiserve.engines.llamacpp.scheduler import RESTARTS_MAX
from saiserve.engines.llamacpp.spoilt import FORGIVEN_AFTER, SPOILT_MAX, CacheSpoiltError
from saiserve.engines.messages import Embed, Failed, FailureKind, Prompt, Sampling, Tokens
from tests.unit.llamacpp.desk import Desk

PLAIN = Sampling(seed=1, temperature=0, ignore_eos=True)
OVERFLOWING = Sampling(seed=1, temperature=0, ignore_eos=True, lora=((0, 100.0),))
LONG = Prompt(tokens=tuple(range(60, 90)) * 10)
"""In blocks of cells, where flash attention takes cells that no row may see too."""
SHORT = Prompt(tokens=tuple(range(90, 110)))


@pytest.fixture(params=[True, False], ids=["flash", "matrices"])
def desk(request: pytest.FixtureRequest, open_strong: Callable[[bool], Desk]) -> Desk:
    return open_strong(request.param)


def nan_at(desk: Desk, *draws: int) -> None:
    """Let the output of these draws, counted from 0, be no number."""
    context, real, count = desk.worker._context, desk.worker._context.logits, itertools.count()

    def logits(row: int) -> Logits:
        return np.full_like(real(row), np.nan) if next(count) in draws else real(row)

    context.logits = logits  # type: ignore[method-assign]


def clears(desk: Desk) -> float:
    return desk.worker._scheduler.counters()["clears"]


def spoil(desk: Desk) -> None:
    """Leave NaN in cells, and go before anybody could notice."""
    asking = desk.ask(LONG, max_tokens=4, sampling=OVERFLOWING)
    draws, desk.worker._sample = desk.worker._sample, lambda _plan, _now: None  # type: ignore[method-assign]
    desk.step()
    desk.worker._sample = draws  # type: ignore[method-assign]
    desk.worker._cancel(asking)
    assert clears(desk) == 0


@pytest.mark.parametrize("prompt", [LONG, SHORT], ids=["long", "short"])
def test_whoever_overflows_is_told_and_the_next_ones_are_served(desk: Desk, prompt: Prompt) -> None:
    alone = desk.answer(prompt, max_tokens=8, sampling=PLAIN)[0]
    for round_ in range(SPOILT_MAX + 1):
        asking = desk.ask(LONG, max_tokens=4, sampling=OVERFLOWING)
        desk.finish(asking)
        failed = desk.said[asking][-1]
        assert isinstance(failed, Failed)
        assert (failed.kind, "use smaller ones" in failed.detail) == (FailureKind.BAD_REQUEST, True)
        assert clears(desk) == 2 * round_ + 1, "once it was tried again"
        assert desk.answer(prompt, max_tokens=8, sampling=PLAIN)[0] == alone


@pytest.mark.parametrize("prompt", [LONG, SHORT], ids=["long", "short"])
def test_what_somebody_left_there_costs_nobody_an_answer(desk: Desk, prompt: Prompt) -> None:
    alone = desk.answer(prompt, max_tokens=8, sampling=PLAIN)[0]
    spoil(desk)
    assert desk.answer(prompt, max_tokens=8, sampling=PLAIN)[0] == alone
    desk.worker.handle(Embed("e", "tiny", (LONG.tokens or (),)), desk.now)
    desk.finish("e")
    assert np.isfinite(np.frombuffer(desk.said["e"][-1].vectors[0], "<f4")).all()
    again = desk.ask(LONG, max_tokens=4, sampling=Sampling(seed=1, temperature=0, lora=((0, 1e-6),)))
    desk.finish(again)
    assert desk.result(again)


def test_streams_beside_it_go_on_with_the_same_tokens(desk: Desk) -> None:
    alone = desk.answer(SHORT, max_tokens=30, sampling=PLAIN)[0]
    streams = [desk.ask(SHORT, max_tokens=30, sampling=PLAIN) for _ in range(2)]
    while not any(isinstance(one, Tokens) for one in desk.said[streams[-1]]):
        desk.step()
    overflowing = desk.ask(LONG, max_tokens=4, sampling=OVERFLOWING)
    desk.finish(*streams, overflowing)
    assert isinstance(desk.said[overflowing][-1], Failed)
    for stream in streams:
        assert desk.result(stream)[0] == alone


def test_vectors_are_tried_again_too(desk: Desk) -> None:
    tokens = tuple(range(60, 90)) * 20
    desk.worker.handle(Embed("alone", "tiny", (tokens,)), desk.now)
    desk.finish("alone")
    spoil(desk)
    desk.worker.handle(Embed("e", "tiny", (tokens,)), desk.now)
    desk.finish("e")
    (alone,), (vectors,) = desk.said["alone"][-1].vectors, desk.said["e"][-1].vectors
    np.testing.assert_allclose(np.frombuffer(vectors, "<f4"), np.frombuffer(alone, "<f4"), atol=2e-2)


def test_a_model_that_makes_no_numbers_on_a_clean_cache_ends_the_process(desk: Desk) -> None:
    context = desk.worker._context
    real = context.logits
    context.logits = lambda index: np.full_like(real(index), np.nan)  # type: ignore[method-assign]
    for number in range(SPOILT_MAX):
        asking = desk.ask(f"question {number}", max_tokens=4, sampling=PLAIN)
        desk.finish(asking)
        failed = desk.said[asking][-1]
        assert isinstance(failed, Failed)
        assert failed.kind is FailureKind.INTERNAL
    with pytest.raises(CacheSpoiltError):
        desk.step()


def test_one_good_answer_between_them_and_it_lives_on(desk: Desk) -> None:
    context = desk.worker._context
    real = context.logits
    for number in range(SPOILT_MAX + 1):
        context.logits = lambda index: np.full_like(real(index), np.inf)  # type: ignore[method-assign]
        asking = desk.ask(f"question {number}", max_tokens=4, sampling=PLAIN)
        desk.finish(asking)
        assert isinstance(desk.said[asking][-1], Failed)
        context.logits = real  # type: ignore[method-assign]
        assert desk.answer(f"question {number}", max_tokens=4, sampling=PLAIN)


@pytest.mark.parametrize("lora", [None, ((0, 1e-6),), ((0, 2e-6),)], ids=["base", "adapter", "own scales"])
def test_what_happens_twice_in_a_long_answer_does_not_end_it(
    desk: Desk, lora: tuple[tuple[int, float], ...] | None
) -> None:
    sampling = Sampling(seed=1, temperature=0, ignore_eos=True, lora=lora)
    alone = desk.answer(SHORT, max_tokens=FORGIVEN_AFTER + 30, sampling=sampling)[0]
    nan_at(desk, 3, 3 + FORGIVEN_AFTER + 1)
    assert desk.answer(SHORT, max_tokens=FORGIVEN_AFTER + 30, sampling=sampling)[0] == alone
    assert clears(desk) == 2


def test_what_happens_again_and_again_ends_it(desk: Desk) -> None:
    """One that is no number at every second draw would clear the cache for every token."""
    nan_at(desk, 3, 3 + FORGIVEN_AFTER)
    asking = desk.ask(SHORT, max_tokens=FORGIVEN_AFTER + 30, sampling=PLAIN)
    desk.finish(asking)
    assert failure(desk, asking) == (FailureKind.INTERNAL, False)


def test_kept_logits_go_with_the_cache(desk: Desk) -> None:
    kept = desk.answer("kept before", max_tokens=4, sampling=PLAIN)[0]
    (before,) = desk.worker._ends._kept
    nan_at(desk, 0)
    assert desk.answer("another", max_tokens=4, sampling=PLAIN)[0]
    assert before not in desk.worker._ends
    assert clears(desk) == 1
    assert desk.answer("kept before", max_tokens=4, sampling=PLAIN)[0] == kept


def unseen(desk: Desk, *samplings: Sampling) -> list[str]:
    """Requests of which nothing is drawn, as in a long prompt; once all have rows there, what others draw is no number."""
    asking = [desk.ask(LONG, max_tokens=4, sampling=sampling) for sampling in samplings]
    draw = desk.worker._draw

    def draw_spoilt(answer: Answer, logits: Logits, position: int, now: int) -> None:
        is_there = all(rows(desk, one) for one in asking)
        if answer.request.id not in asking:
            draw(answer, np.full_like(logits, np.nan) if is_there else logits, position, now)

    desk.worker._draw = draw_spoilt  # type: ignore[method-assign]
    return asking


def rows(desk: Desk, request_id: str) -> int:
    """How many it has in the cache."""
    return sum(one.ready for one in desk.worker._scheduler._running.values() if one.job.id == request_id)


OWN = Sampling(seed=1, temperature=0, ignore_eos=True, lora=((0, 2e-6),))


def failure(desk: Desk, request_id: str) -> tuple[FailureKind, bool]:
    failed = desk.said[request_id][-1]
    assert isinstance(failed, Failed), failed
    return failed.kind, "use smaller ones" in failed.detail


def test_sound_scales_of_its_own_are_not_blamed_for_another_s(desk: Desk) -> None:
    """It may be retried elsewhere; who spoilt the cache goes on alone, and is told."""
    innocent = desk.ask(SHORT, max_tokens=400, sampling=OWN)
    while not any(isinstance(one, Tokens) for one in desk.said[innocent]):
        desk.step()
    (culprit,) = unseen(desk, OVERFLOWING)
    desk.finish(innocent)
    assert failure(desk, innocent) == (FailureKind.INTERNAL, False)
    assert not desk.is_over(culprit)
    beside = desk.ask(SHORT, max_tokens=8, sampling=PLAIN)
    desk.finish(culprit, beside)
    assert failure(desk, culprit) == (FailureKind.BAD_REQUEST, True)
    assert len(desk.result(beside)[0]) == 8


def draw_none(desk: Desk, broken: str) -> None:
    """Let this request's output never be a number."""
    draw = desk.worker._draw

    def draw_spoilt(answer: Answer, logits: Logits, position: int, now: int) -> None:
        draw(answer, np.full_like(logits, np.nan) if answer.request.id == broken else logits, position, now)

    desk.worker._draw = draw_spoilt  # type: ignore[method-assign]


def test_who_only_waits_in_a_lane_is_not_blamed(desk: Desk) -> None:
    broken = desk.ask(SHORT, max_tokens=8, sampling=PLAIN)
    waits = desk.ask(LONG, max_tokens=8, sampling=OWN)
    draw_none(desk, broken)
    desk.finish(broken, waits)
    assert failure(desk, broken) == (FailureKind.INTERNAL, False)
    assert len(desk.result(waits)[0]) == 8
    assert clears(desk) == 2


def test_scales_that_drew_tokens_before_are_tried_elsewhere(desk: Desk) -> None:
    """It is under suspicion while it is computed anew, and the only one; but its scales gave numbers."""
    started = desk.ask(SHORT, max_tokens=400, sampling=OWN)
    while not any(isinstance(one, Tokens) for one in desk.said[started]):
        desk.step()
    scheduler = desk.worker._scheduler
    desk.worker._sample = lambda _plan, _now: None  # type: ignore[method-assign]
    for _ in range(RESTARTS_MAX + 2):  # the first time it is not under suspicion
        scheduler.start_over(desk.now)
        desk.step()
    assert failure(desk, started) == (FailureKind.INTERNAL, False)


def test_whoever_is_drawn_first_is_judged_and_the_process_outlasts_it(open_strong: Callable[..., Desk]) -> None:
    """One without adapters spoils the cache for all lanes: they are judged before it."""
    desk = open_strong(True, lanes=SPOILT_MAX)
    innocents = [desk.ask(SHORT, max_tokens=100, sampling=PLAIN) for _ in range(SPOILT_MAX - 1)]
    while not all(any(isinstance(one, Tokens) for one in desk.said[innocent]) for innocent in innocents):
        desk.step()
    culprit = desk.ask(LONG, max_tokens=4, sampling=PLAIN)
    context, real = desk.worker._context, desk.worker._context.logits
    context.logits = lambda row: real(row) * (np.nan if running(desk, culprit) else 1)  # type: ignore[method-assign]
    desk.finish(culprit, *innocents)
    assert {failure(desk, one) for one in (culprit, *innocents)} == {(FailureKind.INTERNAL, False)}
    assert desk.answer(SHORT, max_tokens=4, sampling=PLAIN)


def running(desk: Desk, request_id: str) -> bool:
    return any(one.job.id == request_id for one in desk.worker._scheduler._running.values())


def test_two_that_may_both_be_to_blame_are_tried_elsewhere(desk: Desk) -> None:
    culprits = unseen(desk, OVERFLOWING, OWN)
    beside = desk.ask(SHORT, max_tokens=8, sampling=PLAIN)
    desk.finish(*culprits, beside)
    assert [failure(desk, one) for one in culprits] == [(FailureKind.INTERNAL, False)] * 2
    assert len(desk.result(beside)[0]) == 8


def test_adapters_that_showed_to_be_sound_save_nobody_from_a_fault_of_its_own(desk: Desk) -> None:
    sound = desk.ask(SHORT, max_tokens=100, sampling=OWN)
    while not any(isinstance(one, Tokens) for one in desk.said[sound]):
        desk.step()
    broken = desk.ask(LONG, max_tokens=8, sampling=PLAIN)
    draw_none(desk, broken)
    desk.finish(broken)
    assert failure(desk, broken) == (FailureKind.INTERNAL, False)
    assert not desk.is_over(sound)
    desk.finish(sound)
    assert len(desk.result(sound)[0]) == 100
    assert clears(desk) == 2
