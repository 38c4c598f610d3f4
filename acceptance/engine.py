"""What the engine does once instead of sixteen times, and how late the node's loop runs beside it."""

from __future__ import annotations

import re
from functools import partial

import httpx2
import trio

from acceptance.chat import Stream, chat_body, check_stream, stream_chat
from acceptance.check import Check, LateError, Scale, at_best
from acceptance.cluster import SMOL
from acceptance.nodes import CLUSTER_SECRET, Node, fleet

SYSTEM = "You are a careful assistant of a small library. " + " ".join(
    f"Rule {n}: answer politely about shelf {n}, mention the author, and never invent a title." for n in range(1, 23)
)
LAG_S = 0.050
BUSY_LAG_S = 1.0
"""In a test run: other programs may want the processors."""


async def metric(node: Node, name: str) -> float:
    """The sum of a metric's samples on a node."""
    async with node.client() as client:
        text = (await client.get("/metrics", headers={"X-SAI-Cluster": CLUSTER_SECRET})).raise_for_status().text
    values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? ([0-9.e+-]+)$", text, re.MULTILINE)
    assert values, f"no metric {name} in\n{text[:2000]}"
    return sum(float(value) for value in values)


async def _one_prefill(scale: Scale) -> str:
    async with fleet() as group:
        node = await group.start_ready("node-a", SMOL, seeds="", environment={"THREADS": "2"})
        before = await metric(node, "saiserve_engine_prefill_tokens_total")
        streams: list[Stream] = []

        async def ask(client: httpx2.AsyncClient, number: int) -> None:
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Where is shelf {number}?"}]
            body = chat_body(SMOL, "", 16, logprobs=True, ignore_eos=True) | {"messages": messages}
            streams.append(await stream_chat(client, body))

        async with node.client() as client, trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(ask, client, number)
        for stream in streams:
            check_stream(stream, completion_tokens=16)
        computed = await metric(node, "saiserve_engine_prefill_tokens_total") - before
        prompts = [int(stream.usage["prompt_tokens"]) for stream in streams]
        assert min(prompts) >= 450, prompts
        # Once the shared part, sixteen times what differs (the question and the template's tail).
        assert computed < min(prompts) + 16 * 40, f"{computed:.0f} tokens prefilled for prompts of {prompts}"
        return f"16 prompts of {min(prompts)}–{max(prompts)} tokens, {sum(prompts)} in all: {computed:.0f} prefilled"


async def _loop_lag(scale: Scale) -> str:
    return await at_best(partial(_lag_beside_an_engine, scale), scale.times)


async def _lag_beside_an_engine(scale: Scale) -> str:
    async with fleet() as group:
        node = await group.start_ready("node-a", SMOL, seeds="", environment={"THREADS": ""})

        async def ask(client: httpx2.AsyncClient, number: int) -> None:
            await stream_chat(client, chat_body(SMOL, f"Write about number {number}.", 200, ignore_eos=True))

        async with node.client() as client, trio.open_nursery() as nursery:
            for number in range(scale.pick(16, 8)):
                nursery.start_soon(ask, client, number)
        lag = await metric(node, "saiserve_loop_lag_p99_seconds")
        rate = await metric(node, "saiserve_engine_decode_tokens_total")
        if lag >= (LAG_S if scale.is_full else BUSY_LAG_S):
            raise LateError(f"loop lag p99 {lag * 1000:.1f} ms")
        return f"loop lag p99 {lag * 1000:.1f} ms over the last minute, {rate:.0f} tokens decoded"


CHECKS = (
    Check("one-prefill", "16 requests behind one 450-token system prompt prefill it once", _one_prefill),
    Check("loop-lag", "event-loop lag p99 under 50 ms beside an engine at full speed", _loop_lag),
)  # fmt: skip
