"""Several models on one node: loaded when asked for, waited for, unloaded when idle, never more than the budget."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from saiserve import limits
from saiserve.chat.events import Usage
from saiserve.errors import ApiError, ErrorKind, SettingsError
from saiserve.fleet.facts import ModelState
from saiserve.node import Node
from saiserve.node_service import NodeService
from tests.fakes.node import chat, make_node, running


@asynccontextmanager
async def node_with(
    folder: Path, on_demand: str, *, models: str = "none", **environment: str
) -> AsyncIterator[tuple[Node, NodeService]]:
    node = make_node(models, folder, MODELS_ON_DEMAND=on_demand, **environment)
    async with running(node) as (service, _):
        yield node, service


async def answer(service: NodeService, model: str, id: str = "r1", **more: object) -> float:  # noqa: A002
    """Seconds until the answer was complete."""
    began = trio.current_time()
    async with service.answer(chat("Hello", model=model, id=id, **more)) as started:
        events = [event async for event in started.events]
    assert isinstance(events[-1], Usage)
    return trio.current_time() - began


def state(node: Node, model: str) -> ModelState:
    return node.residents.models[model].state


@pytest.mark.autojump
async def test_a_model_is_loaded_by_the_first_request_and_there_for_the_next(tmp_path: Path) -> None:
    async with node_with(tmp_path, "simulated:sim?load_s=7") as (node, service):
        assert state(node, "sim") is ModelState.LOADABLE
        assert [card.state for card in service.models()] == ["loadable"]
        assert service.unready() == ""
        assert await answer(service, "sim") > 7
        assert [card.state for card in service.models()] == ["ready"]
        assert await answer(service, "sim", "r2") < 1


@pytest.mark.autojump
async def test_many_who_ask_at_once_have_it_loaded_once(tmp_path: Path) -> None:
    async with (
        node_with(tmp_path, "simulated:sim?load_s=7&lanes=64") as (node, service),
        trio.open_nursery() as nursery,
    ):
        for number in range(40):
            nursery.start_soon(answer, service, "sim", f"r{number}")
        await trio.sleep(3)
        resident = node.residents.models["sim"]
        assert (state(node, "sim"), resident.uses) == (ModelState.LOADING, 40)
        assert node.residents.facts()[0].waits
        (card,) = service.models()
        assert card.state == "loading"
        assert card.progress is not None
        assert 0.3 < card.progress["fraction"] < 0.5
        assert 3 < card.progress["remaining_s"] < 5
        assert service.cluster_state()["members"][0]["models"][0]["progress"]["stage"] == "loading"
    assert resident.loads == 1


@pytest.mark.autojump
async def test_counting_and_vectors_wait_for_the_model_too(tmp_path: Path) -> None:
    async with node_with(tmp_path, "simulated:sim?load_s=7") as (_, service):
        assert (await service.count(chat("Hello"))).tokens > 0
    async with node_with(tmp_path, "simulated:sim?load_s=7") as (_, service):
        assert (await service.embed("sim", ("one",), request_id="e1")).vectors


@pytest.mark.autojump
async def test_an_idle_model_is_unloaded_and_comes_back(tmp_path: Path) -> None:
    async with node_with(tmp_path, "simulated:sim?load_s=1&decode_rate=1", KEEP_ALIVE_S="20") as (node, service):
        await answer(service, "sim", max_tokens=40)  # longer than the keep-alive time: in use is not idle
        assert state(node, "sim") is ModelState.READY
        await trio.sleep(19)
        assert state(node, "sim") is ModelState.READY
        await trio.sleep(2)
        assert state(node, "sim") is ModelState.LOADABLE
        assert node.residents.held_bytes == 0
        await answer(service, "sim", "r2")
        assert node.residents.models["sim"].loads == 2


@pytest.mark.autojump
async def test_keep_alive_zero_never_unloads_and_the_models_of_the_start_stay(tmp_path: Path) -> None:
    options = {"models": "first=simulated:first", "KEEP_ALIVE_S": "0"}
    async with node_with(tmp_path, "simulated:sim", **options) as (node, service):
        await answer(service, "sim")
        await trio.sleep(100)
        assert state(node, "sim") is ModelState.READY
    async with node_with(tmp_path, "simulated:sim", models="first=simulated:first", KEEP_ALIVE_S="5") as (
        node,
        service,
    ):
        await trio.sleep(60)
        assert state(node, "first") is ModelState.READY


@pytest.mark.autojump
async def test_the_longest_unused_gives_way_and_a_pinned_one_never(tmp_path: Path) -> None:
    models = ",".join(f"simulated:{name}?memory_mib=400&load_s=1" for name in "abc")
    options = {"models": "pin=simulated:pin?memory_mib=150", "MEMORY_MIB": "1000"}
    async with node_with(tmp_path, models, **options) as (node, service):
        for number, model in enumerate("abac"):
            await answer(service, model, f"r{number}")
        assert {name: state(node, name) for name in "abc"} == {
            "a": ModelState.READY,
            "b": ModelState.LOADABLE,
            "c": ModelState.READY,
        }
        assert state(node, "pin") is ModelState.READY
        assert node.residents.held_bytes <= 1000 << 20
        assert node.residents.loader.evictions == 1


@pytest.mark.autojump
async def test_a_busy_model_is_not_evicted_and_who_waits_in_vain_is_told_the_numbers(tmp_path: Path) -> None:
    models = "simulated:long?memory_mib=600&decode_rate=1,simulated:other?memory_mib=600"
    async with node_with(tmp_path, models, MEMORY_MIB="1000") as (node, service), trio.open_nursery() as nursery:
        nursery.start_soon(lambda: answer(service, "long", max_tokens=60))
        await trio.sleep(1)
        with pytest.raises(
            ApiError, match=r"other.*needs about 0\.63 GB .*0\.42 of 1\.0 GB are left .*long 0\.63 in use"
        ):
            await answer(service, "other", "r2")
        assert state(node, "long") is ModelState.READY
        assert state(node, "other") is ModelState.LOADABLE
        await trio.sleep(60)
        # The long answer has ended: the same request is served now.
        await answer(service, "other", "r3")


@pytest.mark.autojump
async def test_a_model_that_waits_for_room_is_loaded_when_the_busy_one_ends(tmp_path: Path) -> None:
    models = "simulated:long?memory_mib=600&decode_rate=1,simulated:other?memory_mib=600"
    async with node_with(tmp_path, models, MEMORY_MIB="1000") as (_, service), trio.open_nursery() as nursery:
        nursery.start_soon(lambda: answer(service, "long", max_tokens=10))
        await trio.sleep(1)
        assert 5 < await answer(service, "other", "r2") < limits.LOAD_ROOM_S


@pytest.mark.autojump
async def test_a_load_that_fails_is_told_to_all_who_wait_and_not_tried_at_once_again(tmp_path: Path) -> None:
    async with node_with(tmp_path, "simulated:sim?load_s=4&load_fails=1") as (node, service):
        errors: list[ApiError] = []

        async def ask(number: int) -> None:
            with pytest.raises(ApiError) as refused:
                await answer(service, "sim", f"r{number}")
            errors.append(refused.value)

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, number)
        assert trio.current_time() - began < 5
        for error in errors:
            assert error.kind is ErrorKind.MODEL_UNAVAILABLE
            assert "'sim' cannot be served: it is simulated to fail" in error.message
            assert error.retry_after_s is not None
            assert 10 < error.retry_after_s <= limits.LOAD_BACKOFF_FIRST_S
        assert state(node, "sim") is ModelState.FAILED
        assert [card.state for card in service.models()] == ["unavailable"]
        resident = node.residents.models["sim"]
        await ask(10)
        assert resident.load_failures == 1, "within the pause it is not tried"


@pytest.mark.autojump
async def test_a_load_that_takes_longer_than_a_request_may_wait_is_refused_with_the_time(tmp_path: Path) -> None:
    async with node_with(tmp_path, "simulated:sim?load_s=1000") as (_, service):
        with pytest.raises(ApiError, match=r"sim is being loaded \(loading, \d+%; about \d+ s more\)") as refused:
            await answer(service, "sim")
        assert refused.value.kind is ErrorKind.MODEL_UNAVAILABLE
        assert refused.value.retry_after_s is not None
        assert 900 < refused.value.retry_after_s < 1000


@pytest.mark.autojump
async def test_what_can_never_fit_ends_the_start_with_the_model_and_the_numbers(tmp_path: Path) -> None:
    node = make_node("simulated:big?memory_mib=2000", tmp_path, MEMORY_MIB="1000")
    with pytest.raises(SettingsError, match=r"'big' cannot be loaded: it needs about 2\.1 GB .*the budget of 1\.0 GB"):
        await node.residents.run()


@pytest.mark.autojump
async def test_an_unloaded_model_ends_its_answers_first(tmp_path: Path) -> None:
    async with node_with(tmp_path, "simulated:sim?decode_rate=10") as (node, service), trio.open_nursery() as nursery:
        nursery.start_soon(lambda: answer(service, "sim", max_tokens=30))
        await trio.sleep(1)
        began = trio.current_time()
        async with trio.open_nursery() as ending:
            ending.start_soon(node.residents.unload, "sim")
            await trio.sleep(0.5)
            assert state(node, "sim") is ModelState.DRAINING
            assert [fact.state for fact in node.residents.facts()] == [ModelState.DRAINING]
        assert 1 < trio.current_time() - began < 4
        assert state(node, "sim") is ModelState.LOADABLE


@pytest.mark.autojump
async def test_a_model_of_the_start_that_an_operator_unloads_is_forgotten(tmp_path: Path) -> None:
    node = make_node("simulated:sim,simulated:two", tmp_path)
    async with running(node) as (service, _):
        await node.residents.unload("sim")
        assert [card.id for card in service.models()] == ["two"]
        assert service.unready() == ""
        with pytest.raises(ApiError) as refused:
            await answer(service, "sim")
        assert refused.value.kind is ErrorKind.MODEL_NOT_FOUND
        node.residents.order(node.catalog.entries["sim"], pin=True)
        await answer(service, "sim", "r2")


@pytest.mark.autojump
async def test_a_load_can_be_called_off(tmp_path: Path) -> None:
    async with node_with(tmp_path, "simulated:sim?load_s=100") as (node, service), trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(ApiError, match="was unloaded before it could serve"):
                await answer(service, "sim")

        nursery.start_soon(ask)
        await trio.sleep(10.5)
        began = trio.current_time()
        await node.residents.unload("sim")
        assert trio.current_time() - began < 1
        assert node.residents.held_bytes == 0


def test_settings_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="MODELS and MODELS_ON_DEMAND both name sim"):
        make_node("simulated:sim", tmp_path, MODELS_ON_DEMAND="simulated:sim")
    with pytest.raises(SettingsError, match="MODELS_ON_DEMAND names 'nonsense', which is no known model"):
        make_node("none", tmp_path, MODELS_ON_DEMAND="nonsense")


async def test_a_damaged_file_on_demand_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(b"<html>")
    node = make_node("none", tmp_path, MODELS_ON_DEMAND=f"odd={path}")
    with pytest.raises(SettingsError, match=r"'odd' cannot be served.*odd\.gguf"):
        await node.residents.run()
