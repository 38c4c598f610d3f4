"""What `open_cluster` promises a trio program, on an in-memory network and a virtual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
import trio
import trio.testing
from memory_clusters import KEY, MemoryNetwork, config, member, names, state_of, virtual_now

from swimcluster import (
    Address,
    BroadcastReceived,
    ClosedError,
    Cluster,
    ConfigError,
    Event,
    EventsLost,
    ExchangeError,
    JoinError,
    JoinStatus,
    MemberDied,
    MemberJoined,
    MemberState,
    MetadataChanged,
    NameInUseError,
    PayloadTooLargeError,
    PayloadTypeError,
    Snapshot,
    UserMessage,
    open_cluster,
)
from swimcluster.driver import EXCHANGES_IN_FLIGHT_MAX, TOO_MANY
from swimcluster.dump_file import decode_dump
from swimcluster.replay import replay

pytestmark = pytest.mark.autojump


@asynccontextmanager
async def pair(**options: object) -> AsyncIterator[tuple[Cluster, Cluster, MemoryNetwork]]:
    network = MemoryNetwork(delay_s=0.001)
    async with member(network, "a", **options) as a, member(network, "b", "a", **options) as b:
        with trio.fail_after(5):
            await a.wait_for(lambda members: len(members) == 2)
            await b.wait_for(lambda members: len(members) == 2)
        yield a, b, network


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


async def test_metadata_vitals_messages_and_broadcasts_reach_the_other_member() -> None:
    async with pair() as (a, b, _network), b.subscribe() as events:
        assert isinstance(await anext(events), Snapshot)
        a.set_metadata(b"new")
        a.send("b", b"hello")
        a.broadcast(b"to all")
        wanted = {MetadataChanged, UserMessage, BroadcastReceived}
        with trio.fail_after(5):
            while wanted:
                event = await anext(events)
                wanted.discard(type(event))
                if isinstance(event, UserMessage):
                    assert event == UserMessage("a", b"hello")
                if isinstance(event, BroadcastReceived):
                    assert event == BroadcastReceived("a", b"to all")
        a.set_vitals(b"busy: 3")
        with trio.fail_after(3):
            while (found := b.member("a")) is None or found.vitals != b"busy: 3":
                await trio.sleep(0.1)
        assert found.metadata == b"new"
        assert found.vitals_age_s is not None


async def test_values_over_their_limit_are_refused_in_the_caller_and_change_nothing() -> None:
    async with pair() as (a, _b, _network):
        for call, limit in (
            (a.set_metadata, a.config.metadata_bytes_max),
            (a.set_vitals, a.config.vitals_bytes_max),
            (a.broadcast, a.config.broadcast_bytes_max),
            (lambda data: a.send("b", data), a.config.user_datagram_bytes_max),
        ):
            call(b"x" * (limit - 1))
            call(b"x" * limit)
            with pytest.raises(PayloadTooLargeError, match=str(limit)):
                call(b"y" * (limit + 1))
        assert a.local.metadata == b"x" * a.config.metadata_bytes_max
        with pytest.raises(PayloadTooLargeError):
            await a.request("b", b"z" * (a.config.request_bytes_max + 1))


async def test_text_is_refused_in_the_caller_and_a_handler_that_returns_some_costs_its_reply(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async def wrong(sender: str, payload: bytes) -> bytes:
        return "text"  # type: ignore[return-value]

    async with pair(on_request=wrong) as (a, b, _network):
        for call in (a.set_metadata, a.set_vitals, a.broadcast):
            with pytest.raises(PayloadTypeError):
                call("text")  # type: ignore[arg-type]
        with pytest.raises(PayloadTypeError):
            a.set_vitals(object())  # type: ignore[arg-type]
        with pytest.raises(ExchangeError, match="not known"):
            await a.request("b", b"?")
        assert "a reply must be bytes, not str" in caplog.text
        await trio.sleep(30)
        assert [member.state for member in b.members] == [MemberState.ALIVE] * 2
        a.write_recording(tmp_path / "a.flight")  # What was refused is recorded, and refused again.
        steps = list(replay(decode_dump((tmp_path / "a.flight").read_bytes())))
        assert sum(step.error.startswith("PayloadTypeError") for step in steps) == 4
        assert [fault for step in steps for fault in step.faults] == []


async def test_a_request_brings_the_answer_of_the_other_program() -> None:
    async def shout(sender: str, payload: bytes) -> bytes:
        await trio.sleep(0.5)
        return sender.encode() + b":" + payload.upper()

    async with pair(on_request=shout) as (a, b, _network):
        assert await a.request("b", b"question") == b"a:QUESTION"
        assert await b.request("a", b"x" * 60_000) == b"b:" + b"X" * 60_000


async def test_requests_over_the_limit_fail_at_once_and_say_that_nothing_was_sent() -> None:
    asked: list[bytes] = []
    errors: list[tuple[float, str]] = []

    async def never(sender: str, payload: bytes) -> bytes:
        asked.append(payload)
        await trio.sleep_forever()
        return b""

    async with pair(on_request=never) as (a, _, _network):
        began = trio.current_time()

        async def ask(number: int) -> None:
            with pytest.raises(ExchangeError) as error:
                await a.request("b", b"%d" % number)
            errors.append((trio.current_time() - began, str(error.value)))

        async with trio.open_nursery() as nursery:
            for number in range(EXCHANGES_IN_FLIGHT_MAX + 6):
                nursery.start_soon(ask, number)
    refused = [(at, text) for at, text in errors if "was not asked" in text]
    assert len(refused) == len(errors) - len(asked) == 6
    for at, text in refused:
        assert at < 0.1
        assert text == f"b was not asked: {TOO_MANY}; nothing was sent"
        assert str(EXCHANGES_IN_FLIGHT_MAX) in text
    assert all("whether it was handled there is not known" in text for _, text in errors if "was not asked" not in text)


async def test_a_request_without_an_answer_is_an_exchange_error_and_costs_nothing_else() -> None:
    async def fail(sender: str, payload: bytes) -> bytes:
        if payload == b"large":
            return b"x" * 1_000_000
        raise KeyError(payload)

    async with pair(on_request=fail) as (a, b, network):
        with pytest.raises(ExchangeError):
            await a.request("nobody", b"?")
        for payload in (b"crash", b"large"):
            with pytest.raises(ExchangeError):
                await a.request("b", payload)
        network.cut_both(a.local.address, b.local.address)
        with trio.fail_after(a.config.exchange_timeout_s + 1), pytest.raises(ExchangeError):
            await a.request("b", b"lost")
        network.heal()
        await trio.sleep(30)
        assert names(a.members) == names(b.members) == ["a", "b"]
    async with pair() as (a, b, _network):
        with pytest.raises(ExchangeError):
            await a.request("b", b"nobody answers here")


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


async def test_two_nodes_with_different_keys_never_meet() -> None:
    network = MemoryNetwork(delay_s=0.001)
    async with member(network, "a") as a, member(network, "b", "a", keys=[b"quite another key"]) as b:
        await trio.sleep(60)
        assert names(a.members) == ["a"]
        assert names(b.members) == ["b"]


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
