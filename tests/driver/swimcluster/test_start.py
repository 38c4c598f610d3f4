"""Starting on real sockets: which address is told, and seeds that are away, silent, unknown or oneself."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from memory_clusters import KEY

from saiserve.bench.ports import free_port
from swimcluster import Address, Config, ConfigError, JoinAttemptFailed, JoinStatus, MemberJoined, open_cluster
from swimcluster import advertise as advertising
from swimcluster.advertise import advertised_address
from swimcluster.event_log import EventLog
from swimcluster.line_budget import LINES_PER_WINDOW, WINDOW_S
from tests.fakes.ipv6 import needs_ipv6
from tests.fakes.patience import PATIENT, WAIT_S

ANYWHERE = Address("127.0.0.1", 0)


def config(name: str, **settings: Any) -> Config:
    return Config.local(**{"name": name, "bind": ANYWHERE, "keys": [KEY], **PATIENT, **settings})


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0"])
async def test_an_unspecified_address_is_bound_but_never_told(bind: str) -> None:
    host, port = bind.strip("[]").rsplit(":", 1)
    async with open_cluster(config("a", bind=Address(host.strip("[]"), int(port)))) as a:
        assert not a.local.address.is_unspecified
        async with open_cluster(config("b", seeds=[a.local.address])) as b:
            with trio.fail_after(WAIT_S):
                await b.wait_for(lambda members: len(members) == 2)
            assert b.members[0].address == a.local.address


def test_a_host_without_any_route_tells_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advertising, "_source_towards", lambda family, target: None)
    assert advertised_address(Address("0.0.0.0", 7)) == Address("127.0.0.1", 7)


def test_the_route_to_a_seed_decides_and_a_bound_address_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"10.1.2.3": "10.9.9.9", "192.0.2.1": "172.16.0.1"}
    monkeypatch.setattr(advertising, "_source_towards", lambda family, target: routes.get(target))
    assert advertised_address(Address("0.0.0.0", 7)) == Address("172.16.0.1", 7)
    assert advertised_address(Address("0.0.0.0", 7), [Address("10.1.2.3", 1)]) == Address("10.9.9.9", 7)
    assert advertised_address(Address("10.5.5.5", 7), [Address("10.1.2.3", 1)]) == Address("10.5.5.5", 7)


@needs_ipv6
async def test_ipv6_nodes_meet_and_write_their_addresses_with_brackets() -> None:
    async with (
        open_cluster(config("a", bind=Address("::1", 0))) as a,
        open_cluster(config("b", bind=Address("::1", 0), seeds=[str(a.local.address)])) as b,
    ):
        with trio.fail_after(WAIT_S):
            await b.wait_for(lambda members: len(members) == 2)
        assert str(b.members[0].address).startswith("[::1]:")


async def test_a_taken_port_is_a_config_error_that_names_it() -> None:
    async with open_cluster(config("a")) as a:
        with pytest.raises(ConfigError, match=str(a.local.address)):
            async with open_cluster(config("b", bind=a.local.address)):
                pytest.fail("the body must not begin")


async def test_a_seed_that_accepts_and_never_answers_delays_the_start_by_seconds_only() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        silent = Address("127.0.0.1", listener.socket.getsockname()[1])
        with trio.fail_after(WAIT_S):
            async with open_cluster(config("a", seeds=[silent], exchange_timeout_s=2 * WAIT_S)) as a:
                assert a.join_status is JoinStatus.JOINING
                assert [member.name for member in a.members] == ["a"]


async def test_an_unknown_seed_name_is_tried_again_and_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "swimcluster")
    with trio.fail_after(WAIT_S):
        async with (
            open_cluster(config("a", seeds=["seed.invalid:1"], exchange_timeout_s=1.0)) as a,
            a.subscribe() as events,
        ):
            rounds = 0
            while rounds < 2:
                rounds += isinstance(await anext(events), JoinAttemptFailed)
    assert "no answer from seed.invalid:1; trying again" in caplog.text


async def test_a_node_that_is_its_own_only_seed_is_a_first_node_at_once() -> None:
    free = Address("127.0.0.1", free_port())
    with trio.fail_after(WAIT_S):
        async with open_cluster(config("a", bind=free, seeds=[free]), join_wait_s=2 * WAIT_S) as a:
            assert a.join_status is JoinStatus.JOINED


@pytest.mark.autojump
async def test_the_log_is_bounded_and_tells_how_much_it_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "swimcluster")
    async with open_cluster(config("a"), join_wait_s=0) as a:
        joined = MemberJoined(a.local)
        log = EventLog()
        caplog.clear()
        for _ in range(LINES_PER_WINDOW + 50):
            log.write(joined)
        assert len(caplog.records) == LINES_PER_WINDOW
        await trio.sleep(WINDOW_S)
        log.write(joined)
    assert "and 50 more of the kind before" in caplog.records[LINES_PER_WINDOW].getMessage()
