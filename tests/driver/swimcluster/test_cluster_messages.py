"""What members of an open cluster send each other: metadata, vitals, messages, broadcasts, requests; and its bounds."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from memory_clusters import names, pair

from swimcluster import (
    BroadcastReceived,
    ExchangeError,
    MemberState,
    MetadataChanged,
    PayloadTooLargeError,
    PayloadTypeError,
    Snapshot,
    UserMessage,
)
from swimcluster.driver import EXCHANGES_IN_FLIGHT_MAX, TOO_MANY
from swimcluster.dump_file import decode_dump
from swimcluster.replay import replay

pytestmark = pytest.mark.autojump


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
