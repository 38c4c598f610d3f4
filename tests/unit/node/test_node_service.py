"""One node answers, counts, lists and says how it is, with a simulated engine behind it."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from saiserve import limits
from saiserve.channels import received
from saiserve.chat.events import AnswerEvent, AnswerFailed, ChoiceFinished, Started, TextDelta, Usage
from saiserve.engines.engine import Heard, unheard
from saiserve.engines.messages import Count, Counted, Embed, Embedded, RefusalReason, Refused
from saiserve.engines.simulated import SimulatedEngine
from saiserve.errors import ApiError, ErrorKind, SettingsError
from saiserve.logs import ROUTE_LOGGER
from saiserve.metering.metrics import METRICS, NodeMetrics, Tally
from saiserve.models.catalog import Catalog, builtin_catalog
from saiserve.node_service import SIDE_QUESTION_S, NodeService, _Watched
from swimcluster import Address, Config, open_cluster
from swimcluster.transport.udp import open_udp_transport
from tests.fakes.node import chat, make_node, running
from tests.fixtures import tiny_models


@pytest.mark.autojump
async def test_an_answer_is_streamed_counted_and_explained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = make_node("fast=simulated:sim?decode_rate=100", tmp_path)
    with caplog.at_level(logging.INFO, logger=ROUTE_LOGGER):
        async with running(node) as (service, tally):
            async with service.answer(chat("Hello", model="fast")) as answer:
                events = [event async for event in answer.events]
            assert "node-a" in answer.route
    assert isinstance(events[0], Started)
    assert any(isinstance(event, TextDelta) for event in events)
    assert isinstance(events[-2], ChoiceFinished)
    assert isinstance(events[-1], Usage)
    assert events[-1].completion_tokens == 16
    assert tally.requests == {("fast", "done"): 1}
    assert tally.totals["completion_tokens", "fast"] == 16
    assert "key=alice model=fast done at node-a" in caplog.text


@pytest.mark.autojump
async def test_a_client_that_leaves_is_counted_as_cancelled_with_what_it_got(tmp_path: Path) -> None:
    node = make_node("simulated:sim?decode_rate=10", tmp_path)
    async with running(node) as (service, tally):
        async with service.answer(chat("Hello")) as answer:
            async for event in answer.events:
                if isinstance(event, TextDelta):
                    break
        await trio.sleep(0.2)
        assert tally.requests == {("sim", "cancelled"): 1}
        assert 1 <= tally.totals["completion_tokens", "sim"] < 16
        assert node.view.in_flight == 0
        assert node.residents.models["sim"].load.busy == 0


@pytest.mark.autojump
async def test_an_unknown_model_is_not_found_and_leaves_no_series(tmp_path: Path) -> None:
    node = make_node("simulated:sim", tmp_path)
    async with running(node) as (service, tally):
        with pytest.raises(ApiError) as refused:
            async with service.answer(chat("Hello", model="no-such-model")):
                pass
        assert refused.value.kind is ErrorKind.MODEL_NOT_FOUND
        # A name the catalog knows but no member holds is not served either.
        with pytest.raises(ApiError) as refused:
            async with service.answer(chat("Hello", model="4b")):
                pass
        assert refused.value.kind is ErrorKind.MODEL_NOT_FOUND
    assert tally.requests == {}


@pytest.mark.autojump
async def test_a_model_that_only_another_member_knows_is_found_in_any_case(tmp_path: Path) -> None:
    node = make_node("simulated:sim", tmp_path)
    node.catalog = Catalog(builtin_catalog().entries)
    async with running(node) as (service, _), service.answer(chat("Hello", model="SIM")) as answer:
        assert isinstance([event async for event in answer.events][-1], Usage)


@pytest.mark.autojump
async def test_an_engine_that_fails_ends_the_stream_with_an_error(tmp_path: Path) -> None:
    node = make_node("simulated:sim?crash=boom@3&restart_s=0.1", tmp_path)
    async with running(node) as (service, tally):
        async with service.answer(chat("boom")) as answer:
            events = [event async for event in answer.events]
    assert isinstance(events[-1], AnswerFailed)
    assert events[-1].error.row.status >= 500
    assert tally.requests == {("sim", "failed"): 1}


@pytest.mark.autojump
async def test_counts_and_vectors_come_from_the_engine(tmp_path: Path) -> None:
    node = make_node("simulated:sim", tmp_path)
    async with running(node) as (service, _):
        counted = await service.count(chat("one two three"))
        longer = await service.count(chat("one two three four five six"), want_text=True)
        assert 0 < counted.tokens < longer.tokens
        assert longer.text
        embedded = await service.embed("sim", ("one", "two"), request_id="e1")
        assert len(embedded.vectors) == 2
        with pytest.raises(ApiError):
            await service.embed("no-such-model", ("one",), request_id="e2")


class TooLong(SimulatedEngine):
    """Takes no input at all."""

    async def embed(self, request: Embed, heard: Heard = unheard) -> Embedded | Refused:
        await trio.lowlevel.checkpoint()
        numbers = {"prompt_tokens": 9_000, "context_tokens": 8_192, "index": 3}
        return Refused(request.id, RefusalReason.TOO_LONG, "too long", **numbers)


async def test_an_input_that_is_too_long_is_refused_with_its_numbers(tmp_path: Path) -> None:
    node = make_node("simulated:sim", tmp_path)
    async with running(node) as (service, _):
        node.residents.models["sim"].engine = TooLong()
        with pytest.raises(ApiError) as refused:
            await service.embed("sim", ("much",), request_id="e1")
    error = refused.value
    assert (error.kind, error.index) == (ErrorKind.CONTEXT_TOO_LONG, 3)
    assert (error.prompt_tokens, error.context_tokens) == (9_000, 8_192)


class StillLoading(SimulatedEngine):
    """Its process restarts."""

    async def embed(self, request: Embed, heard: Heard = unheard) -> Embedded | Refused:
        await trio.lowlevel.checkpoint()
        return Refused(request.id, RefusalReason.LOADING, "the engine process ended", retry_after_s=7.0)


async def test_an_engine_that_restarts_is_unavailable_and_not_busy(tmp_path: Path) -> None:
    node = make_node("simulated:sim", tmp_path)
    async with running(node) as (service, _):
        node.residents.models["sim"].engine = StillLoading()
        with pytest.raises(ApiError, match="cannot be served now: the engine process ended") as refused:
            await service.embed("sim", ("much",), request_id="e1")
    assert (refused.value.kind, refused.value.retry_after_s) == (ErrorKind.MODEL_UNAVAILABLE, 7.0)


class Slow(SimulatedEngine):
    """Needs many minutes for vectors; `says_so` as it moves on."""

    says_so = True

    async def embed(self, request: Embed, heard: Heard = unheard) -> Embedded | Refused:
        for _ in range(20):
            await trio.sleep(0.9 * SIDE_QUESTION_S)
            if self.says_so:
                heard()
        return await super().embed(request)


@pytest.mark.autojump
@pytest.mark.parametrize("says_so", [True, False])
async def test_vectors_may_take_as_long_as_they_move_on(tmp_path: Path, says_so: bool) -> None:
    node = make_node("simulated:sim", tmp_path)
    async with running(node) as (service, _):
        node.residents.models["sim"].engine = engine = Slow()
        engine.says_so = says_so
        began = trio.current_time()
        if says_so:
            assert len((await service.embed("sim", ("one", "two"), request_id="e1")).vectors) == 2
            assert trio.current_time() - began > 10 * SIDE_QUESTION_S
        else:
            with pytest.raises(ApiError) as refused:
                await service.embed("sim", ("one",), request_id="e1")
            assert refused.value.row.status == 503
            assert trio.current_time() - began < 2 * SIDE_QUESTION_S


class Endless(SimulatedEngine):
    """Says for ever that it moves on."""

    left = False

    async def embed(self, request: Embed, heard: Heard = unheard) -> Embedded | Refused:
        try:
            while True:
                await trio.sleep(0.5 * SIDE_QUESTION_S)
                heard()
        finally:
            self.left = True


@pytest.mark.autojump
async def test_vectors_that_are_never_done_are_given_up_however_much_is_heard_of_them(tmp_path: Path) -> None:
    node = make_node("simulated:sim", tmp_path)
    async with running(node) as (service, _):
        node.residents.models["sim"].engine = engine = Endless()
        began = trio.current_time()
        with trio.move_on_after(2 * limits.VECTORS_S), pytest.raises(ApiError, match="fewer inputs") as refused:
            await service.embed("sim", ("one",), request_id="e1")
        assert engine.left
        assert trio.current_time() - began == pytest.approx(limits.VECTORS_S)
        assert refused.value.kind is ErrorKind.TIMED_OUT


class Silent:
    """An upstream that never answers."""

    model = "big"

    async def count(self, request: Count) -> Counted | Refused:
        await trio.sleep_forever()

    async def embed(self, request: Embed, heard: Heard = unheard) -> Embedded | Refused:
        await trio.sleep_forever()


@pytest.mark.autojump
@pytest.mark.parametrize(
    ("ask", "wait_s"),
    [
        (lambda service: service.count(chat("one", model="big")), SIDE_QUESTION_S),
        (lambda service: service.embed("big", ("one",), request_id="e1"), limits.UPSTREAM_FIRST_S),
    ],
    ids=["count", "vectors"],
)
async def test_an_upstream_may_take_long_for_vectors_and_not_for_a_count(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[NodeService], Awaitable[object]],
    wait_s: float,
) -> None:
    models = {"big": {"capabilities": ["chat", "embeddings"]}}
    table = {"cloud": {"url": "http://127.0.0.1:9/v1", "dialect": "openai", "models": models}}
    node = make_node("simulated:sim", tmp_path, UPSTREAMS=json.dumps(table))
    for name in ("place", "place_named"):
        monkeypatch.setattr(node, name, lambda *_: Silent())
    async with running(node) as (service, _):
        began = trio.current_time()
        with pytest.raises(ApiError, match="no node"):
            await ask(service)
        assert trio.current_time() - began == pytest.approx(wait_s)


@pytest.mark.autojump
async def test_a_draining_node_says_so_and_takes_nothing(tmp_path: Path) -> None:
    node = make_node("simulated:sim", tmp_path)
    assert NodeService(node, Tally.empty(), started_at=1).unready() == "loading sim"
    async with running(node) as (service, _):
        assert service.unready() == ""
        node.start_draining()
        assert "draining" in service.unready()
        with pytest.raises(ApiError) as refused:
            async with service.answer(chat("Hello")):
                pass
        assert refused.value.kind is ErrorKind.DRAINING


async def test_models_and_state_show_what_the_node_holds(tmp_path: Path) -> None:
    node = make_node("simulated:sim?lanes=3", tmp_path)
    async with running(node) as (service, _):
        (card,) = service.models()
        assert (card.id, card.state, card.context_tokens, card.lanes) == ("sim", "ready", 8192, 3)
        assert (card.chat_template, card.size_bytes, card.parameters) == ("", 0, 0)
        (member,) = service.cluster_state()["members"]
        assert member["name"] == "node-a"
        assert member["models"][0]["lanes"] == 3
        assert member["ram_total_mib"] > 0


@pytest.mark.slow
async def test_a_model_whose_file_is_here_is_listed_with_its_template_and_sizes(tmp_path: Path) -> None:
    path = tiny_models.build("llama", tmp_path)
    node = make_node(f"tiny={path}", tmp_path, CONTEXT_TOKENS="256", LANES="2")
    async with running(node) as (service, _):
        (card,) = service.models()
    assert card.chat_template == tiny_models.TEMPLATE
    assert (card.size_bytes, card.lanes) == (path.stat().st_size, 2)
    assert (card.vocabulary, card.embedding_length) == (len(tiny_models.vocabulary()), tiny_models.Shape().width)
    assert card.parameters > 0


async def test_a_file_that_is_no_model_ends_the_start_with_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(b"<html>")
    node = make_node(f"odd={path}", tmp_path)
    with pytest.raises(SettingsError, match="'odd' cannot be served"):
        await node.residents.run()


async def test_every_metric_in_the_table_is_rendered_in_the_text_format(tmp_path: Path) -> None:
    upstreams = '{"t": {"url": "http://127.0.0.1:9/v1", "dialect": "openai", "models": ["far"]}}'
    node = make_node("simulated:sim", tmp_path, UPSTREAMS=upstreams)
    async with running(node) as (service, tally):
        async with service.answer(chat("Hello")) as answer:
            assert [event async for event in answer.events]
        text = NodeMetrics(node, tally).render().decode()
    for definition in METRICS:
        assert f"# HELP {definition.name}" in text
        assert f"\n{definition.name}" in text.replace("# ", "")
    assert 'saiserve_requests_total{model="sim",outcome="done"} 1.0' in text
    assert "saiserve_members" in text


async def test_a_node_in_a_cluster_shows_what_swimcluster_counts_and_each_metric_once(tmp_path: Path) -> None:
    node = make_node("simulated:sim", tmp_path)
    settings = Config.lan(name="node-a", keys=[bytes(range(32))])
    async with (
        open_udp_transport(Address("127.0.0.1", 0)) as transport,
        open_cluster(settings, transport=transport) as joined,
    ):
        node.cluster = joined
        text = NodeMetrics(node, Tally.empty()).render().decode()
    names = [family.name for family in text_string_to_metric_families(text)]
    assert len(names) == len(set(names))
    assert {"swimcluster_probes_failed", "swimcluster_isolated", "saiserve_members"} <= set(names)
    assert 'swimcluster_member_state{member="node-a"} 0' in text


async def test_an_end_that_is_taken_in_passing_is_counted() -> None:
    writer, reader = trio.open_memory_channel[AnswerEvent](4)
    for event in (TextDelta(0, "a"), Usage(1, 0, 1)):
        writer.send_nowait(event)
    watched = _Watched(reader)
    assert isinstance(await anext(watched), TextDelta)
    assert received(watched.receive_nowait) == [Usage(1, 0, 1)]
    assert watched.outcome == "done"
