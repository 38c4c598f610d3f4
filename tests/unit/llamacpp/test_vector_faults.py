"""An error while one request for vectors is served ends that request; its neighbours in the batch and the worker go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from saiserve.engines.llamacpp.embedding import Pending
from saiserve.engines.llamacpp.guard import FAULTS_MAX
from saiserve.engines.llamacpp.loading import load_worker
from saiserve.engines.llamacpp.pooling import Pool
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.vector_context import VectorContext
from saiserve.engines.llamacpp.vector_worker import VectorWorker
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.messages import Count, Counted, Embed, Embedded, Failed, FailureKind, Heartbeat, Prompt
from tests.fixtures import vector_models

BAD = (65, 66, 67)
"""Tokens of the input that brings the fault about."""
OTHERS = (("one text", "another"), ("a neighbour behind it",))


class Panic(BaseException):
    """What native code raises is no Exception."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("vector-models")
    for name in ("bert", "qwen3-ranker"):
        vector_models.MODELS[name](made / f"{name}.gguf")
    return made


@pytest.fixture
def open_worker(folder: Path) -> Callable[[str], VectorWorker]:
    def load(name: str) -> VectorWorker:
        worker, _ = load_worker(
            EngineSettings(model_path=str(folder / f"{name}.gguf"), model_id="tiny", threads=1, flash_attention=False)
        )
        assert isinstance(worker, VectorWorker)
        return worker

    return load


def answers(worker: VectorWorker, **inputs: Sequence[Any]) -> dict[str, Any]:
    """Ask all of these at once; the replies by id."""
    for name, texts in inputs.items():
        worker.handle(Embed(name, "tiny", tuple(texts)), 0)
    for _ in range(100):
        if not worker.step(0):
            break
    assert not worker.has_work
    return {one.id: one for one in worker.take_messages() if not isinstance(one, Heartbeat)}  # type: ignore[attr-defined]


def check_failed(message: Any, error: type[BaseException] | None = None) -> None:
    assert isinstance(message, Failed), message
    assert message.kind is FailureKind.INTERNAL
    told = f"an error inside the engine ({error.__name__})" if error else "the model refused to compute"
    assert told in message.detail


def check_same(found: dict[str, Any], expected: dict[str, Embedded]) -> None:
    """Every expected answer was given; other company in a batch rounds otherwise."""
    for name, answer in expected.items():
        assert isinstance(found[name], Embedded), found[name]
        for one, other in zip(found[name].vectors, answer.vectors, strict=True):
            np.testing.assert_allclose(np.frombuffer(one, "<f4"), np.frombuffer(other, "<f4"), atol=2e-3)


def breaking(real: Callable[..., Any], is_hit: Callable[..., bool], error: type[BaseException]) -> Callable[..., Any]:
    def broken(*given: Any, **named: Any) -> Any:
        if is_hit(*given):
            raise error
        return real(*given, **named)

    return broken


PLACES: list[tuple[Any, str, Callable[..., bool]]] = [
    (Vocabulary, "tokenise", lambda _, text: text == "bad"),
    (Pending, "take", lambda pending, *_: pending.request.id == "bad"),
    (Pending, "answer", lambda pending: pending.request.id == "bad"),
]


@pytest.mark.parametrize("error", [ZeroDivisionError, Panic], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(("place", "name", "is_hit"), PLACES, ids=lambda value: getattr(value, "__name__", None))
def test_a_fault_is_its_request_s_alone(
    open_worker: Callable[[str], VectorWorker],
    monkeypatch: pytest.MonkeyPatch,
    place: Any,
    name: str,
    is_hit: Callable[..., bool],
    error: type[BaseException],
) -> None:
    worker = open_worker("bert")
    expected = answers(worker, before=OTHERS[0], behind=OTHERS[1])
    with monkeypatch.context() as patch:
        patch.setattr(place, name, breaking(getattr(place, name), is_hit, error))
        found = answers(worker, before=OTHERS[0], bad=["bad", "worse"], behind=OTHERS[1])
    check_failed(found["bad"], error)
    check_same(found, expected)
    assert isinstance(answers(worker, again=["bad"])["again"], Embedded)


def test_pooling_one_input_of_several_fails_its_request_once(
    open_worker: Callable[[str], VectorWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = open_worker("bert")
    with monkeypatch.context() as patch:
        patch.setattr(Pool, "result", breaking(Pool.result, lambda _, count: count == len(BAD), ValueError))
        worker.handle(Embed("bad", "tiny", (BAD, "second", "third")), 0)
        worker.handle(Embed("good", "tiny", ("a neighbour behind it",)), 0)
        while worker.step(0):
            pass
    first, second = [one for one in worker.take_messages() if not isinstance(one, Heartbeat)]
    check_failed(first, ValueError)
    assert isinstance(second, Embedded)


@pytest.mark.parametrize("raises", [True, False], ids=["raises", "refuses"])
def test_a_batch_that_cannot_be_computed_is_tried_request_by_request(
    open_worker: Callable[[str], VectorWorker], monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    worker = open_worker("bert")
    expected = answers(worker, before=OTHERS[0], behind=OTHERS[1])
    real = VectorContext.compute

    def compute(context: VectorContext, pieces: Sequence[tuple[Sequence[int], int]]) -> Any:
        if not any(tuple(tokens) == BAD for tokens, _ in pieces):
            return real(context, pieces)
        if raises:
            raise ValueError("tokens that must not pass")
        return None

    with monkeypatch.context() as patch:
        patch.setattr(VectorContext, "compute", compute)
        found = answers(worker, before=OTHERS[0], bad=[BAD], behind=OTHERS[1])
    check_failed(found["bad"])
    check_same(found, expected)
    assert isinstance(answers(worker, again=[BAD])["again"], Embedded)


def test_an_input_in_pieces_that_fails_leaves_nothing_for_the_next(
    open_worker: Callable[[str], VectorWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = open_worker("qwen3-ranker")
    expected = answers(worker, good=["q", "document"])
    with monkeypatch.context() as patch:
        is_second = lambda pending, *_: pending.request.id == "bad" and pending.done > 0  # noqa: E731
        patch.setattr(Pending, "take", breaking(Pending.take, is_second, ValueError))
        found = answers(worker, bad=["q", "word " * 120], good=["q", "document"])
    check_failed(found["bad"], ValueError)
    check_same(found, expected)


def test_a_count_fails_alone(open_worker: Callable[[str], VectorWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    worker = open_worker("bert")
    with monkeypatch.context() as patch:
        patch.setattr("saiserve.engines.llamacpp.vector_worker.counted", lambda *_: 1 / 0)
        worker.handle(Count("c", "tiny", Prompt(text="abc")), 0)
    worker.handle(Count("d", "tiny", Prompt(text="abc")), 0)
    failed, counted = worker.take_messages()
    check_failed(failed, ZeroDivisionError)
    assert isinstance(counted, Counted)


def test_an_engine_that_can_compute_nothing_ends(
    open_worker: Callable[[str], VectorWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = open_worker("bert")
    monkeypatch.setattr(VectorContext, "compute", lambda *_: 1 / 0)
    for at in range(FAULTS_MAX):
        worker.handle(Embed(f"e{at}", "tiny", ("text",)), 0)
    for _ in range(FAULTS_MAX - 1):
        worker.step(0)
    with pytest.raises(ZeroDivisionError):
        worker.step(0)
