"""Vectors that are no numbers, beside streams: the cache is cleared a few times, and the request has an end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from saiserve.engines.llamacpp.spoilt import SPOILT_MAX, CacheSpoiltError
from saiserve.engines.messages import Embed, Embedded, Failed, FailureKind, Prompt, Sampling, Tokens
from tests.unit.llamacpp.desk import Desk

PLAIN = Sampling(seed=1, temperature=0, ignore_eos=True)
STRONG = Sampling(seed=1, temperature=0, ignore_eos=True, lora=((0, 2e-6),))
LONG = tuple(range(60, 90)) * 30
PROMPT = Prompt(tokens=tuple(range(90, 110)))


@pytest.fixture
def desk(open_strong: Callable[[bool], Desk]) -> Desk:
    desk = open_strong(True)
    assert len(LONG) > 2 * desk.worker._embeddings.chunk_max
    desk.worker._scheduler.embedding_done = lambda *_: None  # type: ignore[method-assign]  # a piece per step, not by time
    return desk


def spoil(desk: Desk, is_spoilt: Callable[[int], bool] = lambda start: start == 0) -> None:
    """Let the vectors of pieces that begin at such places be no numbers."""
    context, real = desk.worker._context, desk.worker._context.embed

    def embed(tokens: Sequence[int], start: int) -> Any:
        assert not desk.worker._spoilt.is_spoilt, "computed on what is known to be no number"
        vectors = real(tokens, start)
        return np.full_like(vectors, np.nan) if vectors is not None and is_spoilt(start) else vectors

    context.embed = embed  # type: ignore[method-assign]


def clears(desk: Desk) -> float:
    return desk.worker._scheduler.counters()["clears"]


def streaming(desk: Desk, sampling: Sampling, max_tokens: int) -> str:
    stream = desk.ask(PROMPT, max_tokens=max_tokens, sampling=sampling)
    while not any(isinstance(one, Tokens) for one in desk.said[stream]):
        desk.step()
    return stream


def embed(desk: Desk, *inputs: tuple[int, ...]) -> None:
    desk.worker.handle(Embed("e", "tiny", inputs), desk.now)


def check_failed(desk: Desk) -> None:
    (failed,) = (one for one in desk.said["e"] if isinstance(one, Failed))
    assert failed.kind is FailureKind.INTERNAL
    assert "not numbers" in failed.detail
    assert not desk.worker._embeddings


@pytest.mark.parametrize("start", ["first", "second"])
@pytest.mark.parametrize("sampling", [PLAIN, STRONG], ids=["base", "adapters"])
def test_a_long_input_that_is_never_a_number_has_an_end(desk: Desk, sampling: Sampling, start: str) -> None:
    alone = desk.answer(PROMPT, max_tokens=100, sampling=sampling)[0]
    at = 0 if start == "first" else desk.worker._embeddings.chunk_max
    spoil(desk, lambda start: start == at)
    stream = streaming(desk, sampling, 100)
    embed(desk, LONG)
    desk.finish("e")
    check_failed(desk)
    assert not desk.is_over(stream)
    desk.finish(stream)
    assert desk.result(stream)[0] == alone
    assert clears(desk) == 2


def test_many_inputs_that_are_no_numbers_clear_the_cache_twice(desk: Desk) -> None:
    spoil(desk)
    embed(desk, *(((65, 66, 67),) * 20))
    desk.finish("e")
    check_failed(desk)
    desk.answer(PROMPT, max_tokens=4, sampling=PLAIN)
    assert clears(desk) == 2


def test_one_that_fails_leaves_nothing_for_the_next(desk: Desk) -> None:
    embed(desk, LONG)
    desk.finish("e")
    (alone,) = desk.said.pop("e")
    real = desk.worker._context.embed
    spoil(desk, lambda start: start > 0)
    embed(desk, LONG)
    desk.finish("e")
    check_failed(desk)
    del desk.said["e"]
    desk.worker._context.embed = real  # type: ignore[method-assign]
    embed(desk, LONG)
    desk.finish("e")
    (again,) = desk.said["e"]
    assert isinstance(again, Embedded)
    assert again == alone


def test_nothing_is_embedded_on_what_a_stream_showed_to_be_spoilt(desk: Desk) -> None:
    """`spoil` checks it at each piece."""
    alone = desk.answer(PROMPT, max_tokens=100, sampling=PLAIN)[0]
    spoil(desk, lambda _: False)
    stream = streaming(desk, PLAIN, 100)
    context, real, spoilt = desk.worker._context, desk.worker._context.logits, iter([True])

    def logits(row: int) -> Any:
        return np.full_like(real(row), np.nan) if next(spoilt, False) else real(row)

    context.logits = logits  # type: ignore[method-assign]
    embed(desk, LONG)
    desk.finish("e", stream)
    assert isinstance(desk.said["e"][-1], Embedded)
    assert desk.result(stream)[0] == alone
    assert clears(desk) == 1


def unseen(desk: Desk) -> str:
    """A request with adapters of which nothing is drawn as long as it runs, as in a long prompt."""
    desk.worker._draw_row = lambda *_: None  # type: ignore[method-assign]
    return desk.ask(PROMPT, max_tokens=4, sampling=STRONG)


def test_vectors_outlast_adapters_that_spoil_the_cache(desk: Desk) -> None:
    culprit = unseen(desk)
    spoil(desk, lambda _: bool(desk.worker._scheduler.suspects))
    embed(desk, LONG)
    desk.finish("e", culprit)
    assert isinstance(desk.said["e"][-1], Embedded)
    failed = desk.said[culprit][-1]
    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.BAD_REQUEST
    assert clears(desk) == 2


def test_vectors_that_are_never_numbers_beside_adapters_have_an_end(desk: Desk) -> None:
    """Those with adapters by their own limit, then the vectors by theirs."""
    culprit = unseen(desk)
    spoil(desk)
    embed(desk, LONG)
    desk.finish("e", culprit)
    assert isinstance(desk.said[culprit][-1], Failed)
    check_failed(desk)
    assert clears(desk) == 3


def test_nothing_but_such_vectors_ends_the_process(desk: Desk) -> None:
    spoil(desk)
    for _ in range(SPOILT_MAX):
        desk.said.pop("e", None)
        embed(desk, (65, 66, 67))
        desk.finish("e")
        check_failed(desk)
    with pytest.raises(CacheSpoiltError):
        desk.step()


def test_one_answer_between_them_and_it_lives_on(desk: Desk) -> None:
    spoil(desk)
    for _ in range(SPOILT_MAX + 1):
        desk.said.pop("e", None)
        embed(desk, (65, 66, 67))
        desk.finish("e")
        check_failed(desk)
        desk.answer(PROMPT, max_tokens=2, sampling=PLAIN)


def test_good_vectors_between_them_and_it_lives_on(desk: Desk) -> None:
    spoil(desk, lambda _: len(desk.worker._embeddings.next.inputs[0]) == 3)
    for _ in range(SPOILT_MAX + 1):
        desk.said.pop("e", None)
        embed(desk, (65, 66, 67))
        desk.finish("e")
        check_failed(desk)
        del desk.said["e"]
        embed(desk, (65, 66))
        desk.finish("e")
        assert isinstance(desk.said["e"][-1], Embedded)
