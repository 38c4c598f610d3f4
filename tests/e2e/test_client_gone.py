"""A client that goes away stops its request in every phase, on the node it spoke to and on the one that serves."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import pytest
import trio

from acceptance.cluster import unhurried, wait_view
from acceptance.nodes import API_KEY, Node, fleet
from acceptance.served import post_served

ENGINE = "simulated:sim?lanes=1&decode_rate=20&prefill_rate=400&context_tokens=100000"
WAIT_S = 60.0
"""Each answer would take a hundred seconds: who has its lane before has it because the client went."""
PROMPT_SHORT = "hello"
PROMPT_LONG = " ".join(f"word{n}" for n in range(3000))


def request_bytes(prompt: str, *, stream: bool, max_tokens: int = 2000) -> bytes:
    body = json.dumps(
        {
            "model": "sim",
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "stream": stream,
            "ignore_eos": True,
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {API_KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def connect(node: Node, prompt: str, *, stream: bool) -> trio.SocketStream:
    await unhurried(node, "server")  # it would be told to come again if the server was out of reach
    connection = await trio.open_tcp_stream("127.0.0.1", node.port)
    await connection.send_all(request_bytes(prompt, stream=stream))
    return connection


async def go_away(connection: trio.SocketStream, how: str) -> None:
    if how == "RST":
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.socket.close()


async def engine_of(viewer: Node) -> dict[str, Any]:
    """The serving node's own picture of its engine."""
    state = await viewer.state()
    member = next(m for m in state["members"] if m["name"] == viewer.name)
    return dict(member["models"][0])


async def wait_busy(server: Node, busy: float, timeout_s: float) -> None:
    with trio.fail_after(timeout_s):
        while (await engine_of(server))["busy"] != busy:
            await trio.sleep(0.05)


@pytest.mark.slow
async def test_a_client_that_goes_away_frees_the_lane_in_every_phase() -> None:
    async with fleet() as group:
        server = await group.start_ready("server", ENGINE, seeds="")
        entry = await group.start_ready("entry", "none", seeds=server.address)
        await wait_view([server, entry], {"server", "entry"}, WAIT_S)
        for through in (server, entry):
            for how in ("FIN", "RST"):
                await leave_while_streaming(through, server, how)
                await leave_while_waiting(through, server, how)
                await leave_in_prefill(through, server, how)
            await leave_while_queued(through, server)


async def leave_while_streaming(through: Node, server: Node, how: str) -> None:
    connection = await connect(through, PROMPT_SHORT, stream=True)
    seen = b""
    with trio.fail_after(WAIT_S):
        while seen.count(b"data: ") < 3:
            seen += await connection.receive_some()
    await go_away(connection, how)
    await wait_busy(server, 0, WAIT_S)
    await answers_promptly(through)


async def leave_while_waiting(through: Node, server: Node, how: str) -> None:
    connection = await connect(through, PROMPT_SHORT, stream=False)
    await wait_busy(server, 1, WAIT_S)
    await go_away(connection, how)
    await wait_busy(server, 0, WAIT_S)


async def leave_in_prefill(through: Node, server: Node, how: str) -> None:
    connection = await connect(through, f"{how} {through.name} {PROMPT_LONG}", stream=True)
    await wait_busy(server, 1, WAIT_S)
    await go_away(connection, how)
    await wait_busy(server, 0, WAIT_S)
    await answers_promptly(through)


async def leave_while_queued(through: Node, server: Node) -> None:
    first = await connect(through, PROMPT_SHORT, stream=True)
    await wait_busy(server, 1, WAIT_S)
    queued = await connect(through, "queued behind", stream=True)
    await trio.sleep(0.5)
    await go_away(queued, "FIN")
    await trio.sleep(0.5)
    await go_away(first, "FIN")
    await wait_busy(server, 0, WAIT_S)
    await answers_promptly(through)
    # The one that went while it waited never got a lane.
    assert "queued behind" not in server.log_text()
    await wait_busy(server, 0, WAIT_S)


async def answers_promptly(node: Node) -> None:
    async with node.client() as client:
        with trio.fail_after(WAIT_S):
            body = {"model": "sim", "messages": [{"role": "user", "content": "B"}], "max_tokens": 8}
            reply = await post_served(client, "/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
