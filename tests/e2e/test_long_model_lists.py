"""More to tell than fits a packet: it arrives whole, or the start is refused with the limit."""

from __future__ import annotations

import pytest
import trio

from acceptance.cluster import wait_view
from acceptance.nodes import Node, fleet

COUNT, LENGTH = 200, 60
FETCH_S = 15

pytestmark = pytest.mark.slow


async def listed_by(node: Node) -> set[str]:
    async with node.client() as client:
        return {model["id"] for model in (await client.get("/v1/models")).json()["data"]}


async def test_two_hundred_models_with_long_names_are_listed_by_every_node() -> None:
    names = {f"m{number:03}-" + "x" * (LENGTH - 5) for number in range(COUNT)}
    async with fleet() as group:
        a = await group.start_ready("a", "none", seeds="")
        b = await group.start_ready("b", ",".join(f"simulated:{name}" for name in sorted(names)))
        c = await group.start_ready("c", "none", seeds=a.address)
        await wait_view([a, b, c], {"a", "b", "c"}, 20)
        for node in (a, b, c):
            # What does not fit into gossip is fetched from its owner soon after the member is seen.
            with trio.fail_after(FETCH_S):
                while not names <= await listed_by(node):
                    await trio.sleep(0.1)
        async with c.client() as client:
            body = {"model": max(names), "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_a_name_longer_than_any_is_refused_at_the_start_with_the_limit() -> None:
    async with fleet() as group:
        node = group.start("a", "simulated:" + "x" * 10_000, seeds="")
        with trio.fail_after(20):
            code = await trio.to_thread.run_sync(node.process.wait)
        assert code == 2
        assert "10000 characters" in node.log_text()
        assert "at most 256 characters" in node.log_text()
        assert len(node.log_text()) < 1_000
