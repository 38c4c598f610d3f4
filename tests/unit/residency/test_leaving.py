"""A model on demand whose process is on its way out: who asks for it then waits, and has it loaded anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from saiserve.fleet.facts import ModelState
from saiserve.model_admin import NodeModelAdmin
from saiserve.node import Node
from saiserve.node_service import NodeService
from saiserve.residency.source import SimulatedSource
from tests.fakes.node import chat, make_node, running

END_S = 3.0
"""A process's last moments: gigabytes are given back."""


@pytest.fixture(autouse=True)
def _slow_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    real = SimulatedSource.run

    async def run(source: SimulatedSource, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        try:
            await real(source, task_status=task_status)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(END_S)

    monkeypatch.setattr(SimulatedSource, "run", run)


@asynccontextmanager
async def node_with(folder: Path, on_demand: str, **environment: str) -> AsyncIterator[tuple[Node, NodeService]]:
    node = make_node("none", folder, MODELS_ON_DEMAND=on_demand, **environment)
    async with running(node) as (service, _):
        yield node, service


async def answer(service: NodeService, model: str, id: str) -> None:  # noqa: A002
    async with service.answer(chat("Hello", model=model, id=id)) as started:
        assert [event async for event in started.events]


async def until_leaving(node: Node, model: str) -> None:
    while not node.residents.models[model].is_leaving:
        await trio.sleep(0.01)


@pytest.mark.autojump
async def test_a_request_at_the_end_of_the_keep_alive_time_is_served(tmp_path: Path) -> None:
    async with node_with(tmp_path, "simulated:sim", KEEP_ALIVE_S="20") as (node, service):
        await answer(service, "sim", "r1")
        await until_leaving(node, "sim")
        began = trio.current_time()
        await answer(service, "sim", "r2")
        assert trio.current_time() - began >= END_S - 0.1
        await until_leaving(node, "sim")
        assert (await service.count(chat("Hello"))).tokens
        assert node.residents.models["sim"].loads == 3


@pytest.mark.autojump
async def test_a_request_for_a_model_that_makes_room_is_served_when_there_is_some_again(tmp_path: Path) -> None:
    models = ",".join(f"simulated:{name}?memory_mib=600" for name in "ab")
    async with node_with(tmp_path, models, MEMORY_MIB="1000") as (node, service):
        await answer(service, "a", "r1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, service, "b", "r2")
            await until_leaving(node, "a")
            await answer(service, "a", "r3")
        assert {name: node.residents.models[name].loads for name in "ab"} == {"a": 2, "b": 1}


@pytest.mark.autojump
async def test_an_operator_who_loads_what_is_on_its_way_out_gets_it(tmp_path: Path) -> None:
    async with node_with(tmp_path, "simulated:sim", KEEP_ALIVE_S="20") as (node, service):
        await answer(service, "sim", "r1")
        await until_leaving(node, "sim")
        told = await NodeModelAdmin(node).load("sim", pin=True, wait=True)
        assert (told["state"], told["pinned"]) == ("ready", True)
        await trio.sleep(60)
        assert node.residents.models["sim"].state is ModelState.READY
