"""How a member of an open cluster goes: by leaving its body, by an error, by `leave`; and what a closed cluster says."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from memory_clusters import MemoryNetwork, member, names, pair, state_of

from swimcluster import Address, ClosedError, Event, ExchangeError, JoinStatus, MemberState, Snapshot

pytestmark = pytest.mark.autojump


async def test_two_members_see_each_other_and_a_leave_is_told_not_suffered() -> None:
    network = MemoryNetwork(delay_s=0.001)
    async with member(network, "a", metadata=b"first") as a:
        assert names(a.members) == ["a"]
        assert a.local.is_local
        assert a.join_status is JoinStatus.JOINED
        async with member(network, "b", "a", metadata=b"second") as b:
            assert b.join_status is JoinStatus.JOINED
            with trio.fail_after(2):
                await a.wait_for(lambda members: names(members) == ["a", "b"])
            found = a.member("b")
            assert found is not None
            assert (found.address, found.metadata) == (Address("b", 7946), b"second")
            left_at = trio.current_time()
        with trio.fail_after(2):
            await a.wait_for(lambda members: names(members) == ["a"])
        assert state_of(a, "b") is MemberState.LEFT
        assert names(a.departed) == ["b"]
        assert trio.current_time() - left_at < 5


async def test_an_error_of_the_body_comes_out_as_itself_and_the_member_still_leaves() -> None:
    network = MemoryNetwork(delay_s=0.001)
    async with member(network, "a") as a:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the body of the cluster is what is tried
            async with member(network, "b", "a"):
                await a.wait_for(lambda members: len(members) == 2)
                raise ZeroDivisionError
        await a.wait_for(lambda members: len(members) == 1)
        assert state_of(a, "b") is MemberState.LEFT


async def test_a_cancelled_program_still_says_that_it_leaves() -> None:
    network = MemoryNetwork(delay_s=0.001)
    async with member(network, "a") as a:
        with trio.move_on_after(3) as scope:
            async with member(network, "b", "a"):
                await trio.sleep_forever()
        assert scope.cancelled_caught
        await a.wait_for(lambda members: len(members) == 1)
        assert state_of(a, "b") is MemberState.LEFT


async def test_leaving_into_silence_is_bounded() -> None:
    async with pair() as (a, b, network):
        network.cut_both(a.local.address, b.local.address)
        with trio.fail_after(b.config.leave_timeout_s + 0.1):
            with trio.move_on_after(b.config.leave_timeout_s):
                await b.leave()
                pytest.fail("nobody can have confirmed it, and the exchange waits longer than this")
        progress = b.machine.leave_progress
        assert (progress.told, progress.members, progress.is_done) == (0, 1, False)


async def test_leave_says_how_many_were_told_and_may_be_called_again() -> None:
    async with pair() as (_, b, _network):
        with trio.fail_after(5):
            progress = await b.leave()
            assert (progress.told, progress.members, progress.is_done) == (1, 1, True)
            assert await b.leave() == progress


async def test_after_leaving_each_call_says_that_nothing_goes_out_and_what_runs_in_the_body_goes_on() -> None:
    slow = trio.Event()

    async def answer(sender: str, payload: bytes) -> bytes:
        await slow.wait()
        return b"late"

    async with pair(on_request=answer) as (_, b, _network), trio.open_nursery() as nursery:
        replies: list[bytes] = []

        async def ask() -> None:
            replies.append(await b.request("a", b"?"))

        nursery.start_soon(ask)
        await trio.sleep(0.1)
        assert b.set_metadata(b"before") is b.set_vitals(b"before") is b.broadcast(b"before") is True
        await b.leave()
        assert b.set_metadata(b"after") is b.set_vitals(b"after") is b.broadcast(b"after") is False
        assert b.readvertise("moved:7946") is False
        assert b.local.metadata == b"before"
        with pytest.raises(ExchangeError, match=r"this member has left.*nothing was sent"):
            b.send("a", b"hello")
        with pytest.raises(ExchangeError, match=r"this member has left.*nothing was sent"):
            await b.request("a", b"?")
        slow.set()
        await trio.sleep(0.1)
        assert replies == [b"late"]


async def test_a_closed_cluster_says_so_and_its_readers_end() -> None:
    network = MemoryNetwork()
    kinds: list[type[Event]] = []
    async with trio.open_nursery() as nursery:
        async with member(network, "a") as a:

            async def read() -> None:
                async with a.subscribe() as events:
                    kinds.extend([type(event) async for event in events])

            async def wait() -> None:
                with pytest.raises(ClosedError):
                    await a.wait_for(lambda members: len(members) == 7)

            nursery.start_soon(read)
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
    assert kinds[0] is Snapshot
    for use in (lambda: a.members, lambda: a.set_metadata(b""), a.subscribe):
        with pytest.raises(ClosedError):
            use()
