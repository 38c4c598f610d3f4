"""A model under a name that tells nothing: the entry node without it answers as the node that has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acceptance.cluster import wait_view
from acceptance.nodes import Node, fleet
from acceptance.served import post_served
from tests.fixtures import tiny_models

pytestmark = pytest.mark.slow

SETTINGS = {"CONTEXT_TOKENS": "2048", "KV_CELLS": "2048", "LANES": "2", "THREADS": "1", "CACHE_MIB": "1"}
ASKED = {"model": "renamed", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 24}


async def post(node: Node, path: str, **more: Any) -> dict[str, Any]:
    async with node.client() as client:
        reply = await post_served(client, path, {**ASKED, **more})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def chatted(node: Node, **more: Any) -> tuple[str, str, str]:
    """An answer of one letter over and over, as reasoning, content and the reason of its end."""
    choice = (await post(node, "/v1/chat/completions", logit_bias={str(ord("i")): 100}, **more))["choices"][0]
    message = choice["message"]
    return message.get("reasoning_content") or "", message.get("content") or "", choice["finish_reason"]


async def blocks(node: Node) -> list[tuple[str, str]]:
    reply = await post(node, "/v1/messages", thinking={"type": "adaptive"})
    return [(block["type"], block.get("thinking", block.get("text"))) for block in reply["content"]]


async def test_reasoning_and_stops_are_the_same_at_both_entry_nodes(tmp_path: Path) -> None:
    file = tmp_path / "file.gguf"
    tiny_models.llama(file, template=tiny_models.THINKING)
    async with fleet() as group:
        entry = await group.start_ready("entry", "none", seeds="")
        holder = await group.start_ready("holder", f"renamed={file}", environment=SETTINGS)
        await wait_view([entry, holder], {"entry", "holder"}, 60)
        for node in (holder, entry):
            assert await chatted(node, stop=["i"]) == ("i" * 24, "", "length"), "stops are of the answer alone"
        at_holder = await blocks(holder)
        assert at_holder[0][0] == "thinking"
        assert await blocks(entry) == at_holder
