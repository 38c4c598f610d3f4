"""Long prompts and long queues on a stream: signs of life come in time and are never content."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
import trio

from acceptance.cluster import wait_view
from acceptance.nodes import API_KEY, Node, fleet
from saiserve.limits import KEEPALIVE_COMMENT_S
from tests.e2e.dialects.places import CHAT
from tests.e2e.dialects.reading import MESSAGES

pytestmark = pytest.mark.slow

GAP_S = KEEPALIVE_COMMENT_S + 8
"""The documented interval and what a busy machine adds; shorter than each of the silences that are filled here."""
SLOW_PREFILL = "simulated:slow?prefill_rate=40&context_tokens=100000&answer_tokens=8"
ONE_LANE = "simulated:narrow?lanes=1&decode_rate=2&answer_tokens=64&context_tokens=100000"
LONG_PROMPT = "abc " * 1000
"""1,000 tokens of the simulated model, some 25 s."""


async def stream(node: Node, path: str, model: str, prompt: str, max_tokens: int) -> tuple[bytes, float]:
    """All bytes of a stream's body and the largest silence before one of them."""
    import json

    body: dict[str, Any] = {"model": model, "stream": True, "max_tokens": max_tokens}
    content = json.dumps({**body, "messages": [{"role": "user", "content": prompt}]}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    seen, worst, last = b"", 0.0, time.monotonic()
    async with await trio.open_tcp_stream("127.0.0.1", node.port) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await connection.send_all(head.encode() + content)
        while part := await connection.receive_some():
            worst = max(worst, time.monotonic() - last)
            last = time.monotonic()
            seen += part
    assert seen.startswith(b"HTTP/1.1 200"), seen[:300]
    return dechunked(seen.partition(b"\r\n\r\n")[2]), worst


def dechunked(data: bytes) -> bytes:
    """The body without its chunk sizes (RFC 9112 §7.1)."""
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body, data = body + data[:length], data[length + 2 :]
        if not length:
            return body
    raise AssertionError("the stream was cut")


def check(path: str, body: bytes, worst: float) -> None:
    assert worst < GAP_S, worst
    lines = body.decode().split("\n")
    signs = [line for line in lines if line.startswith(":") or line == "event: ping"]
    assert signs, "there was no sign of life"
    assert all(line.startswith((":", "data: ", "event: ")) for line in lines if line)
    assert lines[-3:] == ["data: [DONE]", "", ""] if path == CHAT else '"message_stop"' in lines[-3]


async def first_has_the_lane(worker: Node) -> None:
    """Wait until the only lane is taken, for some half a minute."""
    with trio.fail_after(60):
        while True:
            (own,) = [member for member in (await worker.state())["members"] if member["name"] == worker.name]
            if any(model["busy"] for model in own["models"] if model["id"] == "narrow"):
                return
            await trio.sleep(0.05)


async def test_a_slow_prompt_and_a_long_queue_show_signs_of_life() -> None:
    async with fleet() as group:
        entry = await group.start_ready("entry", "none", seeds="")
        worker = await group.start_ready("worker", f"{SLOW_PREFILL},{ONE_LANE}")
        await wait_view([entry, worker], {"entry", "worker"}, 60)

        async def prefill(node: Node, path: str, marker: str) -> None:
            body, worst = await stream(node, path, "slow", marker + LONG_PROMPT, 8)
            check(path, body, worst)

        async def queued(node: Node, path: str) -> None:
            await first_has_the_lane(worker)
            body, worst = await stream(node, path, "narrow", "I wait.", 4)
            check(path, body, worst)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream, worker, CHAT, "narrow", "I am first.", 64)
            for node, path, marker in ((entry, CHAT, "1"), (entry, MESSAGES, "2"), (worker, CHAT, "3")):
                nursery.start_soon(prefill, node, path, marker)
            nursery.start_soon(queued, entry, CHAT)
            nursery.start_soon(queued, entry, MESSAGES)
