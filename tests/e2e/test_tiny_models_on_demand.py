"""Real engine processes with tiny weights: loaded on demand, evicted, ended by an operator, stopped, and a file that goes."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from saiserve.chat.events import TextDelta, Usage
from saiserve.engines.llamacpp.supervisor import LlamaEngine
from saiserve.errors import ApiError, ErrorKind
from saiserve.fleet.facts import ModelState
from saiserve.node import Node
from saiserve.node_service import NodeService
from tests.fakes.node import chat, make_node, running
from tests.fixtures import tiny_models

pytestmark = pytest.mark.slow

SETTINGS = {"CONTEXT_TOKENS": "2048", "KV_CELLS": "2048", "LANES": "2", "THREADS": "1", "CACHE_MIB": "1"}


def tiny_node(folder: Path, *, models: str = "none", count: int = 2, **settings: str) -> Node:
    path = tiny_models.build("llama", folder)
    names = []
    for number in range(count):
        copy = folder / f"t{number}.gguf"
        copy.write_bytes(path.read_bytes())
        names.append(f"t{number}={copy}")
    return make_node(models, folder, MODELS_ON_DEMAND=",".join(names), **{**SETTINGS, **settings})


async def answer(service: NodeService, model: str, id: str, tokens: int = 8) -> list[object]:  # noqa: A002
    async with service.answer(chat("Hi", model=model, id=id, max_tokens=tokens)) as started:
        return [event async for event in started.events]


def is_held(node: Node, model: str) -> bool:
    return node.residents.models[model].held_bytes > 0


async def test_a_second_model_takes_the_place_of_an_idle_one(tmp_path: Path) -> None:
    node = tiny_node(tmp_path, MEMORY_MIB="200")
    async with running(node) as (service, _):
        assert isinstance((await answer(service, "t0", "r0"))[-1], Usage)
        assert isinstance((await answer(service, "t1", "r1"))[-1], Usage)
        assert (is_held(node, "t0"), is_held(node, "t1")) == (False, True)
        assert node.residents.loader.evictions == 1


async def test_a_stopped_engine_process_fails_its_own_request_alone(tmp_path: Path) -> None:
    node = tiny_node(tmp_path)
    async with running(node) as (service, _):
        await answer(service, "t0", "r0")
        await answer(service, "t1", "r1")
        stopped = node.residents.models["t0"].source
        assert isinstance(stopped, LlamaEngine)
        assert stopped.pid is not None
        pid = stopped.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    with pytest.raises(ApiError) as refused:
                        await answer(service, "t0", "r2")
                    assert refused.value.row.status in (503, 504)
                    assert refused.value.message

                nursery.start_soon(ask)
                await trio.sleep(1)
                assert isinstance((await answer(service, "t1", "r3"))[-1], Usage)
        finally:
            with suppress(ProcessLookupError):  # it may have been ended for its silence
                os.kill(pid, signal.SIGCONT)


async def test_a_model_whose_file_is_gone_fails_with_a_sentence_when_it_is_needed_again(tmp_path: Path) -> None:
    node = tiny_node(tmp_path, KEEP_ALIVE_S="0")
    async with running(node) as (service, _):
        await answer(service, "t0", "r0")
        (tmp_path / "t0.gguf").unlink()
        assert isinstance((await answer(service, "t0", "r1"))[-1], Usage), "what is mapped stays"
        await node.residents.unload("t0")
        with pytest.raises(ApiError, match=r"there is no file .*t0\.gguf") as refused:
            await answer(service, "t0", "r2")
        assert refused.value.kind is ErrorKind.MODEL_UNAVAILABLE
        assert node.residents.models["t0"].state is ModelState.FAILED
        assert isinstance((await answer(service, "t1", "r3"))[-1], Usage)


async def test_an_answer_that_outlives_the_drain_goes_on_once_the_model_is_back(tmp_path: Path) -> None:
    # Longer than this process may stand still before the drain is over: the engine would be done meanwhile.
    node = tiny_node(tmp_path, DRAIN_S="0.2", CONTEXT_TOKENS="8192", KV_CELLS="8192")
    async with running(node) as (service, _):
        await answer(service, "t0", "r0")
        request = chat("Hi", model="t0", id="r1", max_tokens=6000)
        async with service.answer(request) as started, trio.open_nursery() as nursery:
            texts, events = 0, []
            async for event in started.events:
                events.append(event)
                texts += isinstance(event, TextDelta)
                if texts == 2:
                    nursery.start_soon(node.residents.unload, "t0")
        assert isinstance(events[-1], Usage), events[-1]
        assert events[-1].completion_tokens > texts / 2
        assert node.residents.models["t0"].loads == 2, "the answer had its model loaded again, and went on"
