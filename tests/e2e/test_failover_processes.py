"""Three processes on simulated engines: the serving one is killed at every point of an answer, and nothing shows."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from acceptance.chat import Stream, chat_body
from acceptance.cluster import UNHURRIED_S, unhurried, wait_view
from acceptance.nodes import Node, fleet

TOKENS = 64
MODEL = "simulated:sim?decode_rate=400&lanes=8"


async def stream_and_kill(
    entry: Node, body: dict[str, Any], after: int, workers: dict[str, Node]
) -> tuple[Stream, str]:
    """Run a stream, killing the node that serves it once `after` tokens have come; returns who was killed."""
    result, victim = Stream(), ""
    async with entry.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        result.route = response.headers["x-sai-route"]
        serving = next(name for name in workers if result.route.startswith(name))
        if after == 0:
            victim = serving
            workers[victim].kill()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                result.done = result.done or line == "data: [DONE]"
                continue
            take(result, json.loads(line.removeprefix("data: ")))
            if not victim and result.tokens >= after:
                victim = serving
                workers[victim].kill()
    return result, victim


def take(result: Stream, chunk: dict[str, Any]) -> None:
    assert "error" not in chunk, chunk
    result.ids.add(chunk["id"])
    result.usage = chunk.get("usage") or result.usage
    for choice in chunk["choices"]:
        result.roles += "role" in choice["delta"]
        result.text += choice["delta"].get("content") or ""
        for entry in (choice.get("logprobs") or {}).get("content") or ():
            result.tokens += 1
            result.token_bytes += bytes(entry["bytes"] or ())
        result.finish += [choice["finish_reason"]] if choice.get("finish_reason") else []


@pytest.mark.slow
async def test_a_kill_at_every_token_leaves_the_answer_as_it_was() -> None:
    body = chat_body("sim", "Tell me everything.", TOKENS, seed=7, logprobs=True, ignore_eos=True)
    async with fleet() as group:
        entry = await group.start_ready("entry", "none", seeds="")
        workers: dict[str, Node] = {}
        for name in ("node-a", "node-b"):
            workers[name] = await group.start_ready(name, MODEL, seeds=entry.address)
        await wait_view([entry, *workers.values()], {"entry", *workers}, UNHURRIED_S)
        undisturbed, _ = await stream_and_kill(entry, body, 10**9, workers)
        assert undisturbed.tokens == TOKENS
        for after in range(TOKENS):
            await unhurried(entry, *workers)
            with trio.fail_after(120):
                stream, victim = await stream_and_kill(entry, body, after, workers)
            assert stream.done, f"after {after} tokens"
            assert (len(stream.ids), stream.roles, stream.finish) == (1, 1, ["length"]), f"after {after} tokens"
            assert stream.text == undisturbed.text, f"after {after} tokens"
            assert stream.token_bytes == undisturbed.token_bytes, f"after {after} tokens"
            assert stream.usage["completion_tokens"] == TOKENS, f"after {after} tokens"
            assert victim, f"nobody was killed after {after} tokens"
            workers[victim] = await group.start_ready(victim, MODEL, seeds=entry.address)
            await wait_view([entry, *workers.values()], {"entry", *workers}, UNHURRIED_S)
