"""More to tell than fits a packet: it arrives whole, or the start is refused with the limit."""

from __future__ import annotations

import re

import pytest
import trio
from membership_views import counted

from acceptance.cluster import UNHURRIED_S, wait_view
from acceptance.nodes import READY_S, Node, fleet, free_port
from acceptance.served import post_served
from saiserve.limits import METADATA_BYTES_MAX
from saiserve.peers.swim_transport import DATAGRAM_BYTES_MAX
from tests.fakes.relay import Relay, open_relay

COUNT, LENGTH = 200, 60
VIEW_S, FETCH_S = UNHURRIED_S, UNHURRIED_S
POST = re.compile(rb"content-length: (\d+)\r\nx-sai-swim: datagram\r\n")

pytestmark = pytest.mark.slow


async def listed_by(node: Node) -> set[str]:
    async with node.client() as client:
        return {model["id"] for model in (await client.get("/v1/models")).json()["data"]}


@pytest.mark.parametrize("transport", ["tcp", "udp"])
async def test_two_hundred_models_with_long_names_are_listed_by_every_node(transport: str) -> None:
    names = {f"m{number:03}-" + "x" * (LENGTH - 5) for number in range(COUNT)}
    lists = {"a": "none", "b": ",".join(f"simulated:{name}" for name in sorted(names)), "c": "none"}
    async with fleet() as group, trio.open_nursery() as nursery:
        relays, nodes = [await open_relay(nursery, free_port()) for _ in lists], []
        for (name, models), relay in zip(lists.items(), relays, strict=True):
            settings = {"CLUSTER_TRANSPORT": transport, "CLUSTER_ADVERTISE": relay.address}
            options = {"port": relay.behind, "seeds": relays[0].address if nodes else "", "environment": settings}
            nodes.append(await group.start_ready(name, models, **options))
        await wait_view(nodes, set(lists), VIEW_S)
        for node in nodes:
            # What does not fit into gossip is fetched from its owner soon after the member is seen.
            with trio.fail_after(FETCH_S):
                while await listed_by(node) != names:
                    await trio.sleep(0.1)
        async with nodes[2].client() as client:
            body = {"model": max(names), "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
            assert (await post_served(client, "/v1/chat/completions", body)).status_code == 200
        for node in nodes:
            assert await counted(node, "dropped_malformed", "dropped_full", "dropped_implausible") == 0
            assert node.process.poll() is None
        for node in nodes:
            assert await node.stop() == 0  # then the relays have whole connections
        longest = max(longest_datagram(relay) for relay in relays)
        print(f"longest datagram {longest} bytes")
        assert METADATA_BYTES_MAX < longest <= DATAGRAM_BYTES_MAX
        nursery.cancel_scope.cancel()


def longest_datagram(relay: Relay) -> int:
    """Of those that passed a relay, over UDP or as the body of a POST."""
    posts = [POST.findall(data) for data in relay.requests]
    return max([relay.longest, *(int(length) for lengths in posts for length in lengths)])


async def test_a_name_longer_than_any_is_refused_at_the_start_with_the_limit() -> None:
    async with fleet() as group:
        node = group.start("a", "simulated:" + "x" * 10_000, seeds="")
        with trio.fail_after(READY_S):
            code = await trio.to_thread.run_sync(node.process.wait)
        assert code == 2
        assert "10000 characters" in node.log_text()
        assert "at most 256 characters" in node.log_text()
        assert len(node.log_text()) < 1_000
