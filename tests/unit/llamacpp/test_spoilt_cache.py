"""A request whose numbers overflow may spoil cells that others' attention still multiplies by nothing; it must not last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from saiserve.engines.llamacpp.loading import load_worker
from saiserve.engines.llamacpp.settings import AdapterSettings, EngineSettings
from saiserve.engines.llamacpp.worker import SPOILT_MAX, CacheSpoiltError, Worker
from saiserve.engines.messages import Failed, Sampling
from tests.fixtures.tiny_adapters import lora
from tests.unit.llamacpp.desk import Desk

PLAIN = Sampling(seed=1, temperature=0, ignore_eos=True)
OVERFLOWING = Sampling(seed=1, temperature=0, ignore_eos=True, lora=((0, 100.0),))


@pytest.fixture
def open_desk(tiny: Callable[[str], Path], tmp_path: Path) -> Callable[[bool], Desk]:
    """A desk whose adapter overflows the cache's precision at a large scale."""

    def make(flash: bool) -> Desk:
        adapter = lora(tmp_path / f"strong-{flash}.gguf", seed=1, strength=1e4)
        settings = EngineSettings(
            model_path=str(tiny("llama")),
            model_id="tiny",
            context_tokens=1024,
            cells=4096,
            lanes=4,
            threads=1,
            kv_type="f16",
            flash_attention=flash,
            adapters=(AdapterSettings(name="strong", path=str(adapter), scale=1e-6),),
        )
        worker, _ = load_worker(settings)
        assert isinstance(worker, Worker)
        return Desk(worker)

    return make


def overflow(desk: Desk) -> None:
    """A request that fails for its own scale."""
    asking = desk.ask("much too much", max_tokens=4, sampling=OVERFLOWING)
    desk.finish(asking)
    assert isinstance(desk.said[asking][-1], Failed)


def test_a_spoilt_cache_ends_the_process_after_a_few_requests(open_desk: Callable[[bool], Desk]) -> None:
    desk = open_desk(False)
    assert desk.answer("hello", max_tokens=4, sampling=PLAIN)
    overflow(desk)
    for number in range(SPOILT_MAX):
        asking = desk.ask(f"question {number}", max_tokens=4, sampling=PLAIN)
        desk.finish(asking)
        assert isinstance(desk.said[asking][-1], Failed)
    with pytest.raises(CacheSpoiltError):
        desk.step()


def test_requests_that_overflow_alone_end_nothing(open_desk: Callable[[bool], Desk]) -> None:
    desk = open_desk(True)
    alone = desk.answer("hello", max_tokens=8, sampling=PLAIN)[0]
    for _ in range(SPOILT_MAX + 1):
        overflow(desk)
    assert desk.answer("hello", max_tokens=8, sampling=PLAIN)[0] == alone
