"""SIGTERM: the port refuses at once, what runs ends, nothing new comes, and the process goes when it said it would."""

from __future__ import annotations

import signal

import pytest
import trio

from acceptance.chat import Stream, chat_body, stream_chat
from acceptance.cluster import wait_view
from acceptance.nodes import READY_S, Node, fleet, free_port

IDLE_EXIT_S = 20.0
"""Generous for a loaded machine, and less than a node waits for what runs (DRAIN_S is 30)."""
WAIT_S = 60.0


async def ended(node: Node, timeout_s: float) -> float:
    """Seconds until the process ended."""
    started = trio.current_time()
    with trio.fail_after(timeout_s):
        while node.process.poll() is None:
            await trio.sleep(0.02)
    assert node.process.returncode == 0, node.log_text()[-2000:]
    assert "Traceback" not in node.log_text()
    return trio.current_time() - started


def body(tokens: int) -> dict[str, object]:
    return chat_body("sim", "hello", tokens, ignore_eos=True)


over_each_transport = pytest.mark.parametrize("transport", ["tcp", "udp"])


@pytest.mark.slow
@over_each_transport
async def test_an_idle_node_ends_at_once_open_connections_or_not(transport: str) -> None:
    async with fleet() as group:
        node = await group.start_ready("a", "simulated:sim", seeds="", environment={"CLUSTER_TRANSPORT": transport})
        async with node.client() as client:
            assert (await client.get("/v1/models")).status_code == 200  # leaves a kept-alive connection
            node.signal(signal.SIGTERM)
            await ended(node, IDLE_EXIT_S)


@pytest.mark.slow
@over_each_transport
async def test_a_node_that_still_waits_for_its_seed_ends_at_once(transport: str) -> None:
    async with fleet() as group:
        settings = {"CLUSTER_TRANSPORT": transport}
        node = group.start("a", "simulated:sim", seeds=f"127.0.0.1:{free_port()}", environment=settings)
        with trio.fail_after(READY_S):
            while not await node.listens():
                await trio.sleep(0.02)
        node.signal(signal.SIGTERM)
        await ended(node, IDLE_EXIT_S)


async def busy(node: Node, lanes: int) -> None:
    """Wait until so many answers are being made."""
    with trio.fail_after(WAIT_S):
        while sum(m["busy"] or 0 for m in (await node.state())["members"] if m["name"] == node.name) < lanes:
            await trio.sleep(0.05)


async def refuses(node: Node) -> None:
    """Wait until a node's port is closed."""
    with trio.fail_after(WAIT_S):
        while await node.listens():
            await trio.sleep(0.02)


@pytest.mark.slow
async def test_running_streams_end_normally_and_new_ones_are_refused() -> None:
    async with fleet() as group:
        node = await group.start_ready("a", "simulated:sim?decode_rate=20&lanes=8", seeds="")
        streams: list[Stream] = []

        async def one() -> None:
            async with node.client() as client:
                streams.append(await stream_chat(client, body(200)))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
            await busy(node, 3)
            node.signal(signal.SIGTERM)
            await refuses(node)
            assert node.process.poll() is None
        await ended(node, IDLE_EXIT_S)
        assert [stream.usage["completion_tokens"] for stream in streams] == [200, 200, 200]


@pytest.mark.slow
async def test_a_stream_longer_than_the_drain_is_cut_and_the_process_ends() -> None:
    async with fleet() as group:
        node = await group.start_ready("a", "simulated:sim?decode_rate=5", seeds="", environment={"DRAIN_S": "2"})

        async def one() -> None:
            async with node.client() as client:
                with pytest.raises((AssertionError, Exception)):
                    await stream_chat(client, body(1000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            await busy(node, 1)
            node.signal(signal.SIGTERM)
            took = await ended(node, WAIT_S)
        assert took >= 1.5


@pytest.mark.slow
@over_each_transport
async def test_a_second_signal_ends_the_process_at_once(transport: str) -> None:
    async with fleet() as group:
        settings = {"CLUSTER_TRANSPORT": transport}
        node = await group.start_ready("a", "simulated:sim?decode_rate=5", seeds="", environment=settings)
        async with trio.open_nursery() as nursery:

            async def one() -> None:
                async with node.client() as client:
                    with pytest.raises((AssertionError, Exception)):
                        await stream_chat(client, body(1000))

            nursery.start_soon(one)
            await busy(node, 1)
            node.signal(signal.SIGTERM)
            await refuses(node)  # it has taken the first; two that wait together would be one
            node.signal(signal.SIGTERM)
            await ended(node, IDLE_EXIT_S)


@pytest.mark.slow
async def test_one_of_three_stops_under_load_and_no_client_sees_it() -> None:
    async with fleet() as group:
        sim = "simulated:sim?decode_rate=40&lanes=8"
        entry = await group.start_ready("entry", "none", seeds="")
        workers = [await group.start_ready(name, sim, seeds=entry.address) for name in ("a", "b")]
        await wait_view([entry, *workers], {"entry", "a", "b"}, WAIT_S)
        streams: list[Stream] = []

        async def one(delay_s: float) -> None:
            await trio.sleep(delay_s)
            async with entry.client() as client:
                streams.append(await stream_chat(client, body(60)))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(one, number * 0.2)
            await trio.sleep(2.0)
            workers[0].signal(signal.SIGTERM)
        assert len(streams) == 20
        assert all(stream.usage["completion_tokens"] == 60 for stream in streams)
        await ended(workers[0], WAIT_S)
        with trio.fail_after(WAIT_S):
            while "left" not in {m["state"] for m in (await entry.state())["members"] if m["name"] == "a"}:
                await trio.sleep(0.1)
