"""Models come and go on running nodes: by operators, on demand, on the node that can, beside running streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from acceptance.cluster import wait_view
from acceptance.nodes import API_KEY, CLUSTER_SECRET, Node, fleet, plain_client
from acceptance.processes import below, engines, memory_mib, send_signal
from tests.e2e.test_damaged_models import COPIES, WRONG

pytestmark = pytest.mark.slow

WAIT_S = 60.0
OPERATOR = {"X-SAI-Cluster": CLUSTER_SECRET}


async def admin(node: Node, method: str, path: str, body: dict[str, Any] | None = None) -> httpx2.Response:
    async with plain_client(120) as client:
        return await client.request(method, f"{node.url}/admin/models{path}", headers=OPERATOR, json=body)


async def ask(node: Node, model: str, tokens: int = 8) -> httpx2.Response:
    body = {"model": model, "max_tokens": tokens, "messages": [{"role": "user", "content": "Hello"}]}
    async with node.client() as client:
        return await client.post("/v1/chat/completions", json=body)


async def states_at(viewer: Node, name: str) -> list[str]:
    """The states of a member's models, as another node sees them."""
    return [one["state"] for m in (await viewer.state())["members"] if m["name"] == name for one in m["models"]]


async def stream(node: Node, model: str, tokens: int, began: trio.Event | None = None) -> int:
    """Pieces of one streamed answer that came to its proper end."""
    body = {"model": model, "max_tokens": tokens, "stream": True, "temperature": 0, "ignore_eos": True}
    body["messages"] = [{"role": "user", "content": "Count."}]
    pieces, last = 0, ""
    async with node.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                pieces, last = pieces + 1, line
                if began is not None and pieces > 2:
                    began.set()
    assert last == "data: [DONE]", last
    return pieces


async def test_an_operator_loads_and_unloads_and_strangers_do_not() -> None:
    async with fleet() as group:
        node = await group.start_ready("a", "simulated:first", environment={"MODELS_ON_DEMAND": "simulated:other"})
        assert (await ask(node, "third")).status_code == 404
        loaded = await admin(node, "POST", "/load", {"model": "simulated:third?load_s=1&memory_mib=10"})
        assert (loaded.status_code, loaded.json()["state"], loaded.json()["pinned"]) == (200, "ready", True)
        assert (await ask(node, "third")).status_code == 200
        told = (await admin(node, "GET", "")).json()
        assert {model["id"]: model["state"] for model in told["models"]} == {
            "first": "ready",
            "other": "loadable",
            "third": "ready",
        }
        assert 0 < told["memory"]["held_bytes"] < told["memory"]["budget_bytes"]
        later = await admin(node, "POST", "/load", {"model": "simulated:slow?load_s=600", "wait": False})
        assert (later.status_code, later.json()["state"]) == (202, "loading")
        with trio.fail_after(WAIT_S):
            while (await admin(node, "GET", "/slow")).json().get("progress", {}).get("stage") != "loading":
                await trio.sleep(0.05)
        gone = await admin(node, "POST", "/unload", {"model": "third"})
        assert (gone.status_code, gone.json()["state"]) == (200, "loadable")
        assert (await ask(node, "third")).status_code == 404
        assert (await admin(node, "POST", "/unload", {"model": "third"})).status_code == 404
        assert (await admin(node, "POST", "/load", {"model": "no-such-model"})).status_code == 400
        async with node.client() as client:
            for path in ("/admin/models", "/admin/models/first"):
                assert (await client.get(path)).status_code == 401


async def test_the_commands_show_what_the_node_says(tmp_path: Path) -> None:
    async with fleet() as group:
        node = await group.start_ready("a", "none")

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "saiserve.cli", *arguments, "--url", node.url],
                env={"PATH": os.environ["PATH"], "CLUSTER_SECRET": CLUSTER_SECRET},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        good = await trio.to_thread.run_sync(run, "load", "simulated:sim?load_s=1")
        assert (good.returncode, good.stdout[:12]) == (0, "sim is ready"), good.stderr
        damaged = tmp_path / "odd.gguf"
        damaged.write_text("<html>", "utf-8")
        bad = await trio.to_thread.run_sync(run, "load", str(damaged))
        assert bad.returncode == 1
        assert "odd.gguf" in bad.stderr
        assert node.log_text().count("odd.gguf") == 1, "it was tried once"
        gone = await trio.to_thread.run_sync(run, "unload", "sim")
        assert (gone.returncode, gone.stdout) == (0, "sim is unloaded\n")
        again = await trio.to_thread.run_sync(run, "unload", "sim")
        assert again.returncode == 1
        assert "this node has no model 'sim'" in again.stderr


async def test_a_model_is_loaded_on_the_peer_that_can() -> None:
    async with fleet() as group:
        entry = await group.start_ready("entry", "none")
        able = await group.start_ready(
            "able", "none", environment={"MODELS_ON_DEMAND": "simulated:sim?load_s=3", "KEEP_ALIVE_S": "0"}
        )
        with trio.fail_after(WAIT_S):
            while len((await entry.state())["members"]) < 2 or (await ask(entry, "sim")).status_code == 404:
                await trio.sleep(0.2)
        await wait_view([entry, able], {"entry", "able"}, WAIT_S)
        models = {m["name"]: m["models"] for m in (await entry.state())["members"]}
        assert (models["entry"], models["able"][0]["state"]) == ([], "ready")
        assert (await ask(entry, "sim")).headers["x-sai-route"].startswith("able")
        assert (await admin(able, "POST", "/unload", {"model": "sim"})).json()["state"] == "loadable"
        with trio.fail_after(WAIT_S):  # until the entry node has heard of it
            while await states_at(entry, "able") != ["loadable"]:
                await trio.sleep(0.2)
        replies: list[httpx2.Response] = []

        async def one() -> None:
            replies.append(await ask(entry, "sim"))

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(one)
        assert [reply.status_code for reply in replies] == [200] * 8
        assert (await admin(able, "GET", "/sim")).json()["loads"] == 2


@pytest.mark.parametrize("model", ["smollm2-135m", "gemma-3-270m"])
async def test_damaged_files_beside_a_stream_are_refused_and_the_stream_goes_on(model: str, tmp_path: Path) -> None:
    environment = {"CONTEXT_TOKENS": "2048", "LANES": "2", "CACHE_MIB": "0"}
    async with fleet() as group:
        node = await group.start_ready("a", model, environment=environment)
        assert await stream(node, model, 60) > 10  # buffers are made at the first batches
        before = memory_mib(node.process.pid)
        for name, damage in {**COPIES[model], **WRONG}.items():
            path = tmp_path / name / "model.gguf"
            path.parent.mkdir()
            damage(path)
            began = trio.Event()
            pieces: list[int] = []

            async def talk(pieces: list[int] = pieces, began: trio.Event = began) -> None:
                pieces.append(await stream(node, model, 60, began))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(talk)
                await began.wait()
                refused = await admin(node, "POST", "/load", {"model": str(path)})
            assert 400 <= refused.status_code < 600, name
            assert "model.gguf" in refused.json()["error"]["message"], name
            assert pieces[0] > 10, name
        assert node.process.poll() is None
        assert [one["id"] for one in (await admin(node, "GET", "")).json()["models"]] == [model]
        assert "Traceback" not in node.log_text()
        with trio.fail_after(WAIT_S):  # a refused load is told a moment before its process has ended
            while {node.process.pid, *(one.pid for one in below(node.process.pid))} != set(before):
                await trio.sleep(0.05)
        after = memory_mib(node.process.pid)
        assert {pid: after[pid] for pid in before if after[pid] > before[pid] + 30} == {}


async def test_two_real_models_share_a_budget_and_a_hung_one_harms_nobody() -> None:
    environment = {"MODELS_ON_DEMAND": "gemma-3-270m", "CONTEXT_TOKENS": "2048", "KV_CELLS": "2048", "CACHE_MIB": "64"}
    async with fleet() as group:
        node = await group.start_ready("a", "smollm2-135m", environment={**environment, "LANES": "2"})
        told = await admin(node, "POST", "/load", {"model": "gemma-3-270m", "pin": False})
        assert told.status_code == 200, told.text
        assert len(engines(node.process.pid)) == 2
        held = {model["id"]: model["held_bytes"] for model in (await admin(node, "GET", "")).json()["models"]}
        newest = engines(node.process.pid)[-1]
        assert 0 < memory_mib(node.process.pid)[newest.pid] <= held["gemma-3-270m"] / 2**20
        newest.send_signal(signal.SIGSTOP)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_fails_with_a_sentence, node)
                assert await stream(node, "smollm2-135m", 60) > 10
        finally:
            send_signal(newest, signal.SIGCONT)  # it may have been ended for its silence


async def test_more_than_the_budget_is_refused_with_numbers() -> None:
    environment = {"MEMORY_MIB": "700", "CONTEXT_TOKENS": "2048", "KV_CELLS": "2048", "CACHE_MIB": "64", "LANES": "2"}
    async with fleet() as group:
        node = await group.start_ready("a", "smollm2-135m", environment=environment)
        refused = await admin(node, "POST", "/load", {"model": "gemma-3-270m"})
        assert refused.status_code == 400
        message = refused.json()["error"]["message"]
        assert "'gemma-3-270m' cannot be loaded: it needs about 0." in message
        assert "smollm2-135m 0." in message
        assert (await ask(node, "smollm2-135m")).status_code == 200
        assert API_KEY not in message


async def _fails_with_a_sentence(node: Node) -> None:
    reply = await ask(node, "gemma-3-270m")
    assert reply.status_code >= 500
    assert reply.json()["error"]["message"]
