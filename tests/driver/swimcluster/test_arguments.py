"""What a program hands in wrongly is refused with a sentence that names it, and costs nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from memory_clusters import MemoryNetwork, config, member

from swimcluster import ConfigError, ExchangeError, JoinError, PayloadTypeError, open_cluster
from swimcluster.line_budget import LINES_PER_WINDOW

CRASH = "the inputs that led to this"
"""What is logged when the machine itself fails: a mistake of the program is none."""

pytestmark = pytest.mark.autojump


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"on_request": 5}, "on_request must be an async function"),
        ({"join_wait_s": -1}, "join_wait_s is -1"),
        ({"join_wait_s": "3"}, "join_wait_s is '3'"),
        ({"join_wait_s": float("nan")}, "join_wait_s is nan"),
    ],
)
async def test_a_wrong_argument_is_refused_before_anything_starts(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        async with open_cluster(config("a", advertise="127.0.0.1:7946"), **options):
            pytest.fail("the body must not begin")


async def test_a_dictionary_is_no_config() -> None:
    with pytest.raises(ConfigError, match="config must be a Config"):
        async with open_cluster({"name": "a"}):  # type: ignore[arg-type]
            pytest.fail("the body must not begin")


@pytest.mark.parametrize("address", [None, 5, b"h:5", ("h", 5)], ids=lambda value: type(value).__name__)
async def test_what_is_no_address_is_never_advertised_nor_dialled(
    address: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with member(MemoryNetwork(), "a") as a:
        before = a.local
        with pytest.raises(ConfigError, match="the advertised address must be an Address"):
            a.readvertise(address)
        with pytest.raises(ConfigError, match="a seed must be an Address"):
            await a.join([address])
        with pytest.raises(ConfigError, match="seeds is a list"):
            await a.join("h:5")
        assert a.local == before
    assert CRASH not in caplog.text


async def test_a_member_in_place_of_its_name_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with member(MemoryNetwork(), "a") as a:
        names: tuple[Any, ...] = (a.local, 5, b"a", ["a"])
        for name in names:
            kind = type(name).__name__
            with pytest.raises(PayloadTypeError, match=f"name must be text, not {kind}; nothing was sent"):
                a.send(name, b"x")
            with pytest.raises(PayloadTypeError, match=f"name must be text, not {kind}; nothing was sent"):
                await a.request(name, b"x")
    assert CRASH not in caplog.text


async def test_a_member_that_asks_itself_is_told_so() -> None:
    async with member(MemoryNetwork(), "a") as a:
        with pytest.raises(ExchangeError, match=r"'a' is this member itself, .*nothing was sent"):
            a.send("a", b"x")
        with pytest.raises(ExchangeError, match=r"'a' is this member itself, .*nothing was sent"):
            await a.request("a", b"x")


async def test_a_join_that_cannot_come_to_anything_says_so_and_promises_no_further_try() -> None:
    async with member(MemoryNetwork(), "a") as a:
        with pytest.raises(JoinError, match=r"no seed given: .*; give one"):
            await a.join([])
        await a.leave()
        with pytest.raises(JoinError, match=r"b:7946: this member has left .*; open another cluster"):
            await a.join(["b:7946"])


async def test_a_key_id_that_is_not_bytes_is_refused_everywhere() -> None:
    async with member(MemoryNetwork(), "a") as a:
        wrong: Any = a.keyring.ids[0].hex()
        for call in (a.keyring.use, a.keyring.remove, a.keyring.coverage):
            with pytest.raises(ConfigError, match="a key id must be bytes"):
                call(wrong)


async def test_a_cluster_shows_who_it_is_also_when_it_is_closed() -> None:
    async with member(MemoryNetwork(), "a") as a:
        pass
    assert repr(a) == "<Cluster member 'a' at a:7946>"


async def test_requests_without_a_handler_are_told_to_a_bounded_length(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "swimcluster")
    network = MemoryNetwork()
    async with member(network, "a") as a, member(network, "b", "a") as b:
        with trio.fail_after(5):
            await b.wait_for(lambda members: len(members) == 2)
        for _ in range(LINES_PER_WINDOW + 5):
            with pytest.raises(ExchangeError, match="its on_request is missing or failed"):
                await b.request("a", b"?")
        lines = [record.getMessage() for record in caplog.records if "no on_request" in record.getMessage()]
        assert lines == ["a request of b was not answered: this member has no on_request"] * LINES_PER_WINDOW
        assert a.isolated is False
