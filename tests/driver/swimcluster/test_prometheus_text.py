"""The text is what a Prometheus parser accepts, sample by sample."""

from __future__ import annotations

from dataclasses import fields

import pytest
import trio
from memory_clusters import MemoryNetwork, config, member, virtual_now
from prometheus_client.parser import text_string_to_metric_families

from swimcluster import Address, Statistics, open_cluster
from swimcluster.prometheus_text import prometheus_text
from swimcluster.transport.udp import open_udp_transport
from swimcluster.transport.udp_datagrams import UdpCounters


@pytest.mark.autojump
async def test_a_parser_reads_back_every_statistic_and_every_member() -> None:
    network = MemoryNetwork(delay_s=0.001)
    awkward = 'b"\\'
    async with member(network, "a") as a, member(network, awkward, "a", host="b"):
        await a.wait_for(lambda members: len(members) == 2)
        await trio.sleep(5)
        families = {family.name: family for family in text_string_to_metric_families(prometheus_text(a))}
        expected = {f"swimcluster_{item.name}" for item in fields(Statistics)}
        assert expected <= families.keys()
        states = {s.labels["member"]: s.value for s in families["swimcluster_member_state"].samples}
        assert states == {"a": 0, awkward: 0}
        assert families["swimcluster_members_live"].samples[0].value == 2
        assert families["swimcluster_member_rtt_seconds"].samples[0].value == pytest.approx(0.002, abs=0.001)
        assert families["swimcluster_isolated"].samples[0].value == 0
        short = prometheus_text(a, prefix="x", per_member=False)
        assert "member_state" not in short
        assert all(line.startswith(("#", "x_")) for line in short.splitlines())


async def test_the_udp_transport_shows_what_it_survived() -> None:
    async with (
        open_udp_transport(Address("127.0.0.1", 0)) as transport,
        open_cluster(config("a"), transport=transport, clock=virtual_now) as cluster,
    ):
        transport.counters.receive_errors = 7
        families = {family.name: family for family in text_string_to_metric_families(prometheus_text(cluster))}
        assert families["swimcluster_transport_receive_errors"].samples[0].value == 7
        assert {f"swimcluster_transport_{item.name}" for item in fields(UdpCounters)} <= families.keys()
