"""NaN in the cache must not last: whoever left it there gets an error, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from saiserve.engines.llamacpp.loading import load_worker
from saiserve.engines.llamacpp.settings import AdapterSettings, EngineSettings
from saiserve.engines.llamacpp.worker import SPOILT_MAX, CacheSpoiltError, Worker
from saiserve.engines.messages import Embed, Failed, FailureKind, Prompt, Sampling, Tokens
from tests.fixtures.tiny_adapters import lora
from tests.unit.llamacpp.desk import Desk

PLAIN = Sampling(seed=1, temperature=0, ignore_eos=True)
OVERFLOWING = Sampling(seed=1, temperature=0, ignore_eos=True, lora=((0, 100.0),))
LONG = Prompt(tokens=tuple(range(60, 90)) * 10)
"""In blocks of cells, where flash attention takes cells that no row may see too."""
SHORT = Prompt(tokens=tuple(range(90, 110)))


@pytest.fixture(params=[True, False], ids=["flash", "matrices"])
def desk(request: pytest.FixtureRequest, tiny: Callable[[str], Path], tmp_path: Path) -> Desk:
    """A desk whose adapter overflows the cache's precision at a large scale."""
    adapter = lora(tmp_path / "strong.gguf", seed=1, strength=1e4)
    settings = EngineSettings(
        model_path=str(tiny("llama")),
        model_id="tiny",
        context_tokens=1024,
        cells=4096,
        lanes=4,
        threads=1,
        kv_type="f16",
        flash_attention=request.param,
        adapters=(AdapterSettings(name="strong", path=str(adapter), scale=1e-6),),
    )
    worker, _ = load_worker(settings)
    assert isinstance(worker, Worker)
    return Desk(worker)


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
