"""How a member of an open cluster comes in: seeds that answer, do not, or are itself, and names that are held already."""

from __future__ import annotations

from itertools import count

import pytest
import trio
from memory_clusters import MemoryNetwork, member, names, pair, state_of

from swimcluster import Address, JoinError, JoinStatus, MemberState, NameInUseError

pytestmark = pytest.mark.autojump


async def test_seeds_that_do_not_answer_leave_a_member_alone_that_goes_on_trying() -> None:
    network = MemoryNetwork(delay_s=0.001)
    started = trio.current_time()
    async with member(network, "b", "a") as b:
        assert trio.current_time() - started < 5
        assert names(b.members) == ["b"]
        assert b.join_status is JoinStatus.JOINING
        with pytest.raises(JoinError, match="a:7946"):
            await b.join(["a:7946"])
        await trio.sleep(300)
        async with member(network, "a") as a:
            with trio.fail_after(b.config.seed_retry_max_s + 5):
                await a.wait_for(lambda members: len(members) == 2)
                await b.wait_for(lambda members: len(members) == 2)
            assert b.join_status is JoinStatus.JOINED


async def test_join_later_on_returns_the_seed_that_answered() -> None:
    network = MemoryNetwork(delay_s=0.001)
    async with member(network, "a") as a, member(network, "b") as b:
        assert await b.join(["a:7946"]) == Address("a", 7946)
        with trio.fail_after(2):
            await a.wait_for(lambda members: len(members) == 2)


async def test_a_seed_list_that_names_the_member_itself_makes_no_second_entry() -> None:
    network = MemoryNetwork(delay_s=0.001)
    async with member(network, "a", "a") as a, member(network, "b", "b", "a") as b:
        with trio.fail_after(20):
            await b.wait_for(lambda members: len(members) == 2)
        await trio.sleep(60)
        assert names(a.members) == names(b.members) == ["a", "b"]


async def test_two_nodes_with_different_keys_never_meet() -> None:
    network = MemoryNetwork(delay_s=0.001)
    async with member(network, "a") as a, member(network, "b", "a", keys=[b"quite another key"]) as b:
        await trio.sleep(60)
        assert names(a.members) == ["a"]
        assert names(b.members) == ["b"]


@pytest.mark.parametrize("silent", [(), ("gone",)])
async def test_of_a_seed_that_refuses_the_log_says_why_and_not_that_it_gave_no_answer(
    silent: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    network = MemoryNetwork(delay_s=0.001)
    async with member(network, "a"), member(network, "b", "a", *silent, keys=[b"quite another key"]):
        await trio.sleep(30)
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if line.startswith("a:7946: its key ids are")]
    unanswered = {line.split(";")[0] for line in lines if "no answer" in line}
    assert unanswered == {f"no answer from {seed}:7946" for seed in silent}


async def test_a_name_held_by_a_live_member_raises_name_in_use_out_of_open_cluster_itself() -> None:
    async with pair() as (a, b, network):
        with pytest.raises(NameInUseError, match=r"'b'.*b:7946"):
            async with member(network, "b", "a", host="elsewhere", join_wait_s=60):
                pytest.fail("the body must not begin")
        await trio.sleep(30)
        assert a.member("b") is not None
        assert a.member("b").address == b.local.address  # type: ignore[union-attr]
        assert state_of(a, "b") is MemberState.ALIVE


async def test_a_name_found_to_be_held_later_on_ends_the_body_with_name_in_use() -> None:
    async with pair() as (_, _b, network):
        impostor = Address("elsewhere", 7946)
        for holder in ("a", "b"):
            network.cut_both(impostor, Address(holder, 7946))
        with trio.fail_after(120), pytest.raises(NameInUseError):  # noqa: PT012 - as above
            async with member(network, "b", "a", host="elsewhere"):
                network.heal()
                await trio.sleep_forever()


@pytest.mark.parametrize("wait", ["request", "join"])
async def test_what_waits_while_the_name_is_taken_does_not_hide_that_it_is(
    wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(sender: str, payload: bytes) -> bytes:
        await trio.sleep_forever()
        return b""

    network = MemoryNetwork(delay_s=0.001)
    network.cut_both(Address("b", 7946), Address("gone", 7946))
    async with member(network, "c", on_request=never):
        monkeypatch.setattr("swimcluster.session.wall_clock_ms", count(1).__next__)
        with trio.fail_after(8), pytest.raises(NameInUseError, match="elsewhere:7946"):  # noqa: PT012 - as above
            async with member(network, "b", "c") as b, member(network, "b", host="elsewhere") as later:
                await b.wait_for(lambda members: len(members) == 2)
                b.feed("join", (later.local.address,))  # Now they meet, and the greater life keeps the name.
                await (b.request("c", b"?") if wait == "request" else b.join(["gone:7946"]))
