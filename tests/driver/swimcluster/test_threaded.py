"""asyncio and thread programs get the same cluster: the same errors, working timeouts, no event lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from swimcluster import (
    Address,
    ClosedError,
    Cluster,
    Config,
    ConfigError,
    ExchangeError,
    JoinError,
    MemberJoined,
    MetadataChanged,
    NameInUseError,
    PayloadTooLargeError,
    Snapshot,
    UserMessage,
)
from swimcluster.dump_file import decode_dump
from swimcluster.prometheus_text import prometheus_text
from swimcluster.replay import replay
from swimcluster.rotation import KeyRotation
from swimcluster.thread_face import ThreadedKeyRotation
from swimcluster.threaded import AsyncioCluster, ThreadedCluster, open_asyncio_cluster, open_cluster
from swimcluster.transport.udp_datagrams import UdpCounters
from tests.fakes.patience import PATIENT, WAIT_S

ANYWHERE = Address("127.0.0.1", 0)


def config(name: str, *seeds: Address, **overrides: Any) -> Config:
    return Config.local(name=name, bind=ANYWHERE, seeds=seeds, insecure=True, **PATIENT | overrides)


def wait_until(claim: Callable[[], object]) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + WAIT_S
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def in_asyncio(body: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine on asyncio in a thread of its own, as the tests themselves run on trio or plainly."""

    async def main() -> None:
        async with asyncio.timeout(2 * WAIT_S):
            await body()

    asyncio.run(main())


def test_threads_join_wait_ask_and_read_events() -> None:
    def shout(sender: str, payload: bytes) -> bytes:
        return threading.current_thread().name.encode() and payload.upper()

    with open_cluster(config("a"), on_request=shout) as a, a.subscribe() as events:
        assert isinstance(events.get(timeout_s=WAIT_S), Snapshot)
        with pytest.raises(TimeoutError):
            events.get(timeout_s=0.05)
        with open_cluster(config("b", a.local.address), metadata=b"of b") as b:
            assert [member.name for member in b.wait_for(lambda found: len(found) == 2, timeout_s=WAIT_S)] == ["a", "b"]
            joined = events.get(timeout_s=WAIT_S)
            assert isinstance(joined, MemberJoined)
            assert joined.member.metadata == b"of b"
            assert b.request("a", b"question", timeout_s=WAIT_S) == b"QUESTION"
            with pytest.raises(ExchangeError):
                b.request("nobody", b"?", timeout_s=WAIT_S)
            with pytest.raises(PayloadTooLargeError):
                b.set_metadata(b"x" * 513)
            b.set_metadata(b"new")
            while not isinstance(event := events.get(timeout_s=WAIT_S), MetadataChanged):
                pass
            assert event.member.metadata == b"new"
            with pytest.raises(TimeoutError):
                b.wait_for(lambda found: len(found) == 9, timeout_s=0.05)
            assert a.statistics().members_live == 2
        a.wait_for(lambda found: len(found) == 1, timeout_s=WAIT_S)
    for use in (lambda: a.members, lambda: a.wait_for(lambda found: True), a.subscribe):
        with pytest.raises(ClosedError):
            use()


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) | vars(kind.__base__) if not name.startswith("_")}


def test_both_faces_have_what_a_trio_program_has() -> None:
    of_the_package, set_when_made = {"feed", "machine"}, {"config"}
    assert public(ThreadedCluster) == public(AsyncioCluster)
    assert (public(Cluster) | set_when_made) - of_the_package == public(ThreadedCluster)
    assert public(KeyRotation) == public(ThreadedKeyRotation)


def test_a_thread_reads_metrics_settings_and_keys_and_writes_the_recording(tmp_path: Path) -> None:
    key, new_key = b"the key of this year", b"the key of next year"
    with open_cluster(Config.local(name="a", bind=ANYWHERE, keys=[key])) as a:
        assert a.config.advertise == a.local.address
        counters = a.transport_counters
        assert isinstance(counters, UdpCounters)
        families = {family.name: family for family in text_string_to_metric_families(prometheus_text(a))}
        assert families["swimcluster_members_live"].samples[0].value == 1
        assert {f"swimcluster_transport_{item.name}" for item in fields(UdpCounters)} <= families.keys()
        new_id = a.keyring.install(new_key)
        assert a.keyring.ids[1] == new_id
        assert a.keyring.coverage(new_id).holders == ("a",)
        a.keyring.use(new_id)
        a.keyring.remove(a.keyring.ids[1])
        assert a.keyring.ids == (new_id,)
        with pytest.raises(ConfigError, match="this key signs"):
            a.keyring.remove(new_id)
        a.set_vitals(b"busy")
        a.write_recording(tmp_path / "a.flight")
    calls = [step.input.call for step in replay(decode_dump((tmp_path / "a.flight").read_bytes()))]
    assert "set_vitals" in calls


def test_many_threads_may_call_at_once() -> None:
    faults: list[BaseException] = []

    with open_cluster(config("a")) as a:

        def work() -> None:
            try:
                for number in range(50):
                    a.set_vitals(b"%d" % number)
                    assert [member.name for member in a.members] == ["a"]
            except BaseException as error:  # noqa: BLE001 - shown by the test
                faults.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert faults == []


def test_iteration_in_a_thread_ends_when_the_cluster_closes() -> None:
    seen: list[object] = []
    with open_cluster(config("a")) as a:
        events = a.subscribe()
        thread = threading.Thread(target=lambda: seen.extend(events))
        thread.start()
        wait_until(lambda: seen)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert isinstance(seen[0], Snapshot)


def test_a_held_name_is_raised_by_open_cluster_in_the_programs_own_thread() -> None:
    with open_cluster(config("a")) as a, open_cluster(config("b", a.local.address)) as b:
        b.wait_for(lambda found: len(found) == 2, timeout_s=WAIT_S)
        with pytest.raises(NameInUseError, match="'b'"), open_cluster(config("b", a.local.address), join_wait_s=30):
            pytest.fail("the body must not begin")
        with pytest.raises(JoinError):
            b.join([Address("127.0.0.1", 9)], timeout_s=WAIT_S)
        with pytest.raises(TimeoutError, match=r"timeout_s = 0\.05"):
            b.wait_for(lambda found: len(found) == 3, timeout_s=0.05)
        assert repr(b) == "<ThreadedCluster member 'b'>"


def test_asyncio_joins_waits_asks_and_reads_events() -> None:
    async def body() -> None:
        loops: list[object] = []

        async def shout(sender: str, payload: bytes) -> bytes:
            loops.append(asyncio.get_running_loop())
            await asyncio.sleep(0.01)
            return payload.upper()

        async with open_asyncio_cluster(config("a"), on_request=shout) as a, a.subscribe() as events:
            assert isinstance(await anext(events), Snapshot)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(events)
            async with open_asyncio_cluster(config("b", a.local.address)) as b:
                assert isinstance(await anext(events), MemberJoined)
                await b.wait_for(lambda found: len(found) == 2)
                assert await b.request("a", b"question") == b"QUESTION"
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await b.wait_for(lambda found: len(found) == 9)
            await a.wait_for(lambda found: len(found) == 1)
        assert loops == [asyncio.get_running_loop()]
        with pytest.raises(ClosedError):
            _ = a.members

    in_asyncio(body)


def test_a_reader_cancelled_again_and_again_misses_nothing() -> None:
    async def body() -> None:
        async with open_asyncio_cluster(config("a")) as a, open_asyncio_cluster(config("b", a.local.address)) as b:
            for cluster in (a, b):  # a member lists another once that one has answered it
                await cluster.wait_for(lambda found: len(found) == 2)
            async with b.subscribe() as events:
                await anext(events)
                sent = [b"%02d" % number for number in range(30)]
                for payload in sent:
                    a.send("b", payload)
                heard: list[bytes] = []
                deadline = time.monotonic() + WAIT_S
                while len(heard) < len(sent) and time.monotonic() < deadline:
                    try:
                        async with asyncio.timeout(0.0005):
                            event = await anext(events)
                    except TimeoutError:
                        continue
                    if isinstance(event, UserMessage):
                        heard.append(event.payload)
                assert heard == sent

    in_asyncio(body)


def test_an_error_of_the_asyncio_body_comes_out_as_itself() -> None:
    async def body() -> None:
        with pytest.raises(ZeroDivisionError):
            async with open_asyncio_cluster(config("a")):
                raise ZeroDivisionError

    in_asyncio(body)
