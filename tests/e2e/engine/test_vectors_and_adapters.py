"""A real node with models for vectors and ranks beside one with LoRA adapters that sees images, asked over HTTP."""

from __future__ import annotations

import base64
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from acceptance.nodes import Node, fleet
from tests.fixtures import tiny_models, vector_models
from tests.fixtures.tiny_adapters import lora
from tests.fixtures.tiny_mmproj import mmproj, png

pytestmark = pytest.mark.slow


@asynccontextmanager
async def running(tmp_path: Path) -> AsyncIterator[Node]:
    for name in ("bert", "bert-ranker"):
        vector_models.MODELS[name](tmp_path / f"{name}.gguf")
    tiny = tiny_models.build("llama", tmp_path)
    lora(tmp_path / "poet.gguf", seed=1)
    models = f"tiny={tiny},bert={tmp_path / 'bert.gguf'},ranker={tmp_path / 'bert-ranker.gguf'}"
    async with fleet() as nodes:
        projector = mmproj(tmp_path / "mmproj.gguf")
        own = f'[model.tiny]\nlora = ["poet={tmp_path / "poet.gguf"}@0.9"]\nmmproj = "{projector}"\nkv_cells = 2048\n'
        (nodes.folder / "saiserve.toml").write_text(own)
        yield await nodes.start_ready("one", models)


async def test_each_model_does_what_it_is_for_and_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as node, node.client() as http:
        models = (await http.get("/v1/models")).json()["data"]
        assert {model["id"]: model["parent"] for model in models if model["parent"]} == {"tiny:poet": "tiny"}
        listed = {model["id"]: model["tags"] for model in models}
        assert set(listed) == {"tiny", "tiny:poet", "bert", "ranker"}
        assert listed["bert"] == ["embeddings"]
        assert listed["ranker"] == ["rerank"]

        vectors = await http.post("/v1/embeddings", json={"model": "bert", "input": ["a text", "another"]})
        assert [round(math.hypot(*one["embedding"]), 5) for one in vectors.json()["data"]] == [1.0, 1.0]
        too_long = await http.post("/v1/embeddings", json={"model": "bert", "input": "x" * 97})
        assert too_long.status_code == 400
        assert all(number in too_long.json()["error"]["message"] for number in ("96 tokens", "98 tokens"))

        ranks = {"query": "what?", "documents": ["this", "that", "other"], "top_n": 2}
        ranked = (await http.post("/v1/rerank", json={"model": "ranker", **ranks})).json()["results"]
        assert len(ranked) == 2
        assert ranked[0]["relevance_score"] >= ranked[1]["relevance_score"]
        for model in ("tiny", "bert"):
            refused = await http.post("/v1/rerank", json={"model": model, **ranks})
            assert refused.status_code == 400
            assert "rerank" in refused.json()["error"]["message"]
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        for model in ("bert", "ranker"):
            refused = await http.post("/v1/chat/completions", json={"model": model, **chat})
            assert refused.status_code == 400


async def test_an_adapter_is_a_model_of_its_own(tmp_path: Path) -> None:
    async with running(tmp_path) as node, node.client() as http:

        async def say(model: str) -> tuple[str, int]:
            body = {"model": model, "prompt": "tell me a long story of it", "temperature": 0, "max_tokens": 24}
            answer = (await http.post("/v1/completions", json=body)).json()
            return answer["choices"][0]["text"], answer["usage"].get("prompt_tokens_details", {}).get(
                "cached_tokens", 0
            )

        plain, poet = await say("tiny"), await say("tiny:poet")
        assert plain[0] != poet[0]
        assert poet[1] == 0
        again = await say("TINY:poet")
        assert again[0] == poet[0]
        assert again[1] > 0
        unknown = await http.post("/v1/completions", json={"model": "tiny:nobody", "prompt": "a"})
        assert unknown.status_code == 404
        for path, prompt in (("/completion", {"prompt": "a"}), ("/v1/completions", {"prompt": "a"}), (
            "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}
        )):  # fmt: skip
            for lora, status in (([{"id": 0, "scale": 0.5}], 200), ([], 200), ([{"id": 1, "scale": 1}], 400)):
                reply = await http.post(path, json={"model": "tiny", **prompt, "max_tokens": 2, "lora": lora})
                assert reply.status_code == status, reply.text
                assert status == 200 or "no adapter 1" in reply.json()["error"]["message"]
        body = {"model": "tiny", "prompt": "tell me a long story of it", "temperature": 0, "max_tokens": 24}
        named = await http.post("/v1/completions", json={**body, "lora": [{"id": 0, "scale": 0.9}]})
        assert named.json()["choices"][0]["text"] == poet[0]


async def test_images_are_seen_by_who_sees_and_refused_with_a_reason_otherwise(tmp_path: Path) -> None:
    async with running(tmp_path) as node, node.client() as http:

        async def ask(model: str, url: str) -> tuple[int, str]:
            parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is it?"}]
            body = {"model": model, "messages": [{"role": "user", "content": parts}], "max_tokens": 4}
            reply = await http.post("/v1/chat/completions", json=body)
            return reply.status_code, reply.text

        def inline(data: bytes) -> str:
            return f"data:image/png;base64,{base64.b64encode(data).decode()}"

        tags = {model["id"]: model["tags"] for model in (await http.get("/v1/models")).json()["data"]}
        assert "vision" in tags["tiny"]
        assert (await ask("tiny", inline(png())))[0] == 200
        assert (await ask("tiny:poet", inline(png())))[0] == 200
        for model, url in (("tiny", inline(b"no image")), ("tiny", "http://127.0.0.1/a.png"), ("bert", inline(png()))):
            status, text = await ask(model, url)
            assert status == 400, text
        assert (await ask("tiny", inline(png(seed=9))))[0] == 200
