"""Vectors that take minutes are no silence: an engine says meanwhile that it lives, and of each request that it moves on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio

from saiserve.engines.llamacpp.loading import load_worker
from saiserve.engines.llamacpp.outbox import REPORT_S
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.supervisor import EngineState, LlamaEngine
from saiserve.engines.llamacpp.vector_worker import VectorWorker
from saiserve.engines.llamacpp.worker import Worker
from saiserve.engines.messages import Embed, Embedded, Heartbeat, Progress
from tests.fixtures import vector_models
from tests.unit.llamacpp.desk import STEPS_MAX, Desk

NS = 1_000_000_000


def test_an_engine_that_only_makes_vectors_reports_between_their_pieces(desk: Desk) -> None:
    desk.worker.handle(Embed("e", "tiny", tuple(f"text number {at}" for at in range(8))), desk.now)
    silent_s = longest_s = 0.0
    while "e" not in desk.said:
        desk.now += round(REPORT_S * NS)
        assert desk.worker.step(desk.now)
        told = desk.worker.take_messages()
        silent_s = 0.0 if any(isinstance(one, Heartbeat) for one in told) else silent_s + REPORT_S
        longest_s = max(longest_s, silent_s)
        if any(isinstance(one, Embedded) for one in told):
            break
    assert longest_s <= REPORT_S


def told_beside(desk: Desk, worker: Worker | VectorWorker, requests: int) -> list[list[str]]:
    """Whom each step, two seconds long, gives a sign of life, until the first request has its vectors."""
    for number in range(requests):
        worker.handle(Embed(f"e{number}", "tiny", ("one",) * 12), desk.now)
    signs: list[list[str]] = []
    for _ in range(STEPS_MAX):
        desk.now += 2 * NS
        assert worker.step(desk.now)
        told = worker.take_messages()
        if any(isinstance(one, Embedded) for one in told):
            return signs
        signs.append([one.id for one in told if isinstance(one, Progress)])
    raise AssertionError("no vectors")


def test_every_request_for_vectors_is_heard_of_while_one_moves_on(desk: Desk) -> None:
    signs = told_beside(desk, desk.worker, 3)
    assert signs[0] == [], "it has only begun"
    assert len(signs) > 5
    assert all(one == ["e0", "e1", "e2"] for one in signs[1:])


def test_nobody_is_heard_of_while_nothing_moves(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.worker.handle(Embed("e", "tiny", ("one",) * 12), desk.now)
    desk.worker.step(desk.now)
    desk.worker.take_messages()
    monkeypatch.setattr(desk.worker._scheduler, "may_embed", lambda _now, _cells: False)
    desk.now += 2 * NS
    desk.worker.step(desk.now)  # tells of the step before
    desk.worker.take_messages()
    for _ in range(5):
        desk.now += 2 * NS
        desk.worker.step(desk.now)
    assert not [one for one in desk.worker.take_messages() if isinstance(one, Progress)]


def test_a_model_that_only_makes_vectors_says_so_too(tmp_path: Path, desk: Desk) -> None:
    vector_models.MODELS["qwen3-ranker"](tmp_path / "ranker.gguf")
    settings = EngineSettings(model_path=str(tmp_path / "ranker.gguf"), model_id="tiny", threads=1)
    worker, _ = load_worker(settings)
    assert isinstance(worker, VectorWorker)
    for number in range(2):
        worker.handle(Embed(f"e{number}", "tiny", ("query", *["one"] * 12), "rank"), desk.now)
    signs = []
    for _ in range(5):
        desk.now += 2 * NS
        worker.step(desk.now)
        signs.append([one.id for one in worker.take_messages() if isinstance(one, Progress)])
    assert signs == [[], *[["e0", "e1"]] * 4]


def test_long_texts_that_are_being_read_are_heard_of(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    real = desk.worker._intake._read_vectors
    monkeypatch.setattr(desk.worker._intake, "_read_vectors", lambda request: go_on.wait() and real(request))
    desk.worker.step(desk.now)
    desk.worker.handle(Embed("e", "tiny", tuple("word " * 100 for _ in range(300))), desk.now)
    desk.now += 2 * NS
    desk.worker.step(desk.now)
    assert [one for one in desk.worker.take_messages() if isinstance(one, Progress)] == [Progress("e", 0)]
    go_on.set()
    desk.finish("e")


async def test_whoever_awaits_vectors_hears_of_them(desk: Desk) -> None:
    engine = LlamaEngine(EngineSettings(model_path="nowhere", model_id="tiny"))
    heard = 0

    class Answering:
        """A process that gives two signs before it answers."""

        def send(self, request: Embed) -> bool:
            for message in (Progress("e", 0), Progress("e", 5), Embedded("e", (), 1)):
                trio.lowlevel.current_trio_token().run_sync_soon(engine._receive, message)
            return True

    def hear() -> None:
        nonlocal heard
        heard += 1

    engine.state, engine._child = EngineState.READY, Answering()  # type: ignore[assignment]
    assert await engine.embed(Embed("e", "tiny", ("one",)), hear) == Embedded("e", (), 1)
    assert heard >= 1, "signs may be joined"
