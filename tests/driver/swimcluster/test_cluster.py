"""What `open_cluster` promises a trio program, on an in-memory network and a virtual clock.

Coming in, going and what members send each other have files of their own: `test_cluster_joining.py` and so on.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing
from memory_clusters import KEY, MemoryNetwork, config, member, names, pair, state_of, virtual_now

from swimcluster import (
    Address,
    ConfigError,
    Event,
    EventsLost,
    MemberDied,
    MemberJoined,
    MemberState,
    PayloadTooLargeError,
    Snapshot,
    open_cluster,
)

pytestmark = pytest.mark.autojump


async def test_a_member_that_falls_silent_is_suspected_then_dead_and_comes_back_when_heard() -> None:
    seen: list[Event] = []
    async with pair() as (a, b, network), trio.open_nursery() as nursery:

        async def watch() -> None:
            async with a.subscribe() as events:
                async for event in events:
                    seen.append(event)  # noqa: PERF401 - seen must grow while reading

        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        network.cut_both(a.local.address, b.local.address)
        with trio.fail_after(30):
            await a.wait_for(lambda members: names(members) == ["a"])
        assert state_of(a, "b") is MemberState.DEAD
        network.heal()
        with trio.fail_after(120):
            await a.wait_for(lambda members: names(members) == ["a", "b"])
            await b.wait_for(lambda members: names(members) == ["a", "b"])
        nursery.cancel_scope.cancel()
    assert isinstance(seen[0], Snapshot)
    kinds = [type(event) for event in seen]
    assert kinds.index(MemberDied) < kinds.index(MemberJoined)


async def test_a_slow_reader_is_told_what_it_missed_and_the_protocol_does_not_wait() -> None:
    network = MemoryNetwork(delay_s=0.001)
    async with member(network, "a", event_queue_max=2) as a, a.subscribe() as events:
        for number in range(3):
            async with member(network, f"m{number}", "a"):
                await a.wait_for(lambda members: len(members) == 2)
            await a.wait_for(lambda members: len(members) == 1)
        kinds = []
        with trio.move_on_after(1):
            async for event in events:
                kinds.append(type(event))  # noqa: PERF401 - the loop is cut by the deadline
        assert kinds[:4] == [Snapshot, MemberJoined, EventsLost, Snapshot]


async def test_a_reader_may_use_the_cluster_while_it_handles_an_event() -> None:
    network = MemoryNetwork(delay_s=0.001)
    asked: list[bytes] = []

    async def on_request(sender: str, payload: bytes) -> bytes:
        asked.append(payload)
        return payload

    async with member(network, "a") as a, a.subscribe() as events:
        async with member(network, "b", "a", on_request=on_request):
            with trio.fail_after(10):
                async for event in events:
                    assert "a" in names(a.members)
                    if isinstance(event, MemberJoined):
                        a.set_metadata(b"from the reader")
                        a.set_vitals(b"busy")
                        a.send(event.member.name, b"hello")
                        a.broadcast(b"to all")
                        assert await a.request(event.member.name, b"?") == b"?"
                        async with a.subscribe() as more:
                            assert isinstance(await more.__anext__(), Snapshot)
                        assert (await a.leave()).is_done
                        break
    assert asked == [b"?"]


async def test_a_key_is_rotated_without_losing_anybody() -> None:
    new = b"the next key of the cluster"
    async with pair() as (a, b, _network):
        first = a.keyring.ids
        key_id = a.keyring.install(new)
        with pytest.raises(ConfigError, match="b"):
            a.keyring.use(key_id)
        assert b.keyring.install(new) == key_id
        with trio.fail_after(10):
            while a.keyring.coverage(key_id).lacking or b.keyring.coverage(key_id).lacking:
                await trio.sleep(0.1)
        assert a.keyring.coverage(key_id).holders == ("a", "b")
        for node in (a, b):
            node.keyring.use(key_id)
        for node in (a, b):
            node.keyring.remove(first[0])
            assert node.keyring.ids == (key_id,)
        await trio.sleep(30)
        assert names(a.members) == names(b.members) == ["a", "b"]


async def test_a_member_that_moves_is_seen_at_its_new_address() -> None:
    network = MemoryNetwork(delay_s=0.001)
    async with member(network, "a") as a, member(network, "b", "a") as b:
        await a.wait_for(lambda members: len(members) == 2)
        b.readvertise("moved:7946")
        with trio.fail_after(5):
            await a.wait_for(lambda members: members[1].address == Address("moved", 7946))
        with pytest.raises(ConfigError):
            b.readvertise("0.0.0.0:7946")


async def test_the_callers_transport_stays_open() -> None:
    network = MemoryNetwork()
    async with network.open_transport(Address("a", 7946)) as transport:
        for _ in range(2):
            async with open_cluster(config("a"), transport=transport, clock=virtual_now) as cluster:
                assert cluster.local.address == Address("a", 7946)
        assert await transport.send(Address("b", 1), b"x")


async def test_wrong_settings_are_refused_before_anything_starts() -> None:
    network = MemoryNetwork()
    async with network.open_transport(Address("a", 7946)) as transport:
        with pytest.raises(PayloadTooLargeError):
            async with open_cluster(config("a"), transport=transport, metadata=b"x" * 513, clock=virtual_now):
                pytest.fail("the body must not begin")


def test_the_key_is_in_no_text_a_log_may_show() -> None:
    assert KEY.decode() not in repr(config("a"))
