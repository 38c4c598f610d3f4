"""What operators' routes answer for models that cannot be had, and who may load what."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from saiserve.engines.llamacpp.protocol import Holdings, LongPrefix, TierHoldings
from saiserve.errors import ApiError, ErrorKind
from saiserve.metering.metrics import NodeMetrics
from saiserve.model_admin import NodeModelAdmin
from saiserve.residents import FAILED_MAX
from tests.fakes.node import make_node, running

SECRET = {"CLUSTER_SECRET": "a-secret-of-more-than-16", "HOST": "127.0.0.1"}


@pytest.mark.autojump
async def test_a_model_that_fails_is_400_and_leaves_no_trace(tmp_path: Path) -> None:
    node = make_node("simulated:sim", tmp_path, **SECRET)
    async with running(node):
        admin = NodeModelAdmin(node)
        with pytest.raises(ApiError, match="simulated to fail") as refused:
            await admin.load("simulated:bad?load_fails=1", pin=True, wait=True)
        assert refused.value.kind is ErrorKind.INVALID_REQUEST
        assert [model["id"] for model in admin.status()["models"]] == ["sim"]


@pytest.mark.autojump
async def test_why_a_forgotten_model_was_not_loaded_can_be_asked_without_another_try(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node("simulated:sim", tmp_path, **SECRET)
    async with running(node):
        admin = NodeModelAdmin(node)
        for number in range(FAILED_MAX + 1):
            status = await admin.load(f"simulated:bad{number}?load_fails=1", pin=True, wait=False)
            await trio.sleep(60)
            status = admin.model_status(status["id"])
            assert status["state"] == "failed"
            assert "simulated to fail" in status["error"]
        assert len([record for record in caplog.records if "simulated to fail" in record.message]) == FAILED_MAX + 1
        assert len(node.residents.failed) == FAILED_MAX
        with pytest.raises(ApiError, match="no model 'bad0'"):
            admin.model_status("bad0")


@pytest.mark.autojump
async def test_the_prefixes_of_a_model_that_serves_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node("simulated:sim", tmp_path, **SECRET)
    async with running(node):
        admin = NodeModelAdmin(node)
        assert "prefixes" not in admin.model_status("sim")
        holdings = Holdings(host=TierHoldings(2, 300, 4000), longest=(LongPrefix(200, "host", 1.25),))
        monkeypatch.setattr(node.residents.models["sim"].source, "holdings", holdings, raising=False)
        assert admin.model_status("sim")["prefixes"] == {
            "running": {"prefixes": 0, "tokens": 0, "size_bytes": 0},
            "idle": {"prefixes": 0, "tokens": 0, "size_bytes": 0},
            "host": {"prefixes": 2, "tokens": 300, "size_bytes": 4000},
            "longest": [{"tokens": 200, "where": "host", "age_s": 1.2}],
        }


@pytest.mark.autojump
async def test_no_room_now_is_503_and_never_room_is_400(tmp_path: Path) -> None:
    node = make_node("none", tmp_path, MEMORY_MIB="1000", MODELS_ON_DEMAND="simulated:a?memory_mib=600", **SECRET)
    async with running(node):
        admin = NodeModelAdmin(node)
        await admin.load("a", pin=False, wait=True)
        with node.residents.models["a"].use():
            with pytest.raises(ApiError, match="in use") as refused:
                await admin.load("simulated:b?memory_mib=600", pin=True, wait=True)
            assert (refused.value.kind, refused.value.retry_after_s) == (ErrorKind.MODEL_UNAVAILABLE, 15.0)
        with pytest.raises(ApiError, match=r"more than the budget|are left") as refused:
            await admin.load("simulated:c?memory_mib=1200", pin=True, wait=True)
        assert refused.value.kind is ErrorKind.INVALID_REQUEST


@pytest.mark.autojump
async def test_on_a_single_box_only_models_it_was_told_of_can_be_loaded(tmp_path: Path) -> None:
    node = make_node("none", tmp_path, MODELS_ON_DEMAND="simulated:known")
    async with running(node):
        admin = NodeModelAdmin(node)
        assert (await admin.load("known", pin=True, wait=True))["state"] == "ready"
        for stranger in ("simulated:other", "/etc/passwd", "http://127.0.0.1/x.gguf", "hub:a/b"):
            with pytest.raises(ApiError, match="only where CLUSTER_SECRET is set"):
                await admin.load(stranger, pin=True, wait=True)


@pytest.mark.autojump
async def test_a_pinned_model_stays_and_metrics_tell_how_far_a_load_is(tmp_path: Path) -> None:
    node = make_node("none", tmp_path, MODELS_ON_DEMAND="simulated:sim?load_s=10&memory_mib=1", KEEP_ALIVE_S="5")
    async with running(node) as (_, tally):
        admin = NodeModelAdmin(node)
        status = await admin.load("sim", pin=True, wait=False)
        assert status["state"] == "loading"
        await trio.sleep(5)
        text = NodeMetrics(node, tally).render().decode()
        assert 'saiserve_model_load_fraction{model="sim"} 0.' in text
        assert 'saiserve_model_memory_bytes{model="sim"} 1.048576e+06' in text
        await trio.sleep(60)
        assert admin.model_status("sim")["state"] == "ready"
        assert 'saiserve_model_load_fraction{model="sim"} 1.0' in NodeMetrics(node, tally).render().decode()
        with pytest.raises(ApiError, match="this node has no model 'other'; it has sim"):
            await admin.unload("other")
        assert (await admin.unload("sim"))["state"] == "loadable"
