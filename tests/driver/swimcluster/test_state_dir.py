"""What a member with a state folder remembers over its lives; on the real clock, as disks know no other."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from memory_clusters import KEY, MemoryNetwork

from swimcluster import Address, Cluster, Config, MemberState, Snapshot, SnapshotFault, open_cluster, state_file
from swimcluster import snapshot as snapshot_module
from swimcluster.codec import EPOCH_MAX
from swimcluster.snapshot import load_snapshot, store_snapshot
from swimcluster.state_file import StateFile, next_epoch, snapshot_path


@asynccontextmanager
async def member(
    network: MemoryNetwork, name: str, *seeds: str, state_dir: Path | None = None
) -> AsyncIterator[Cluster]:
    config = Config.local(name=name, seeds=[f"{seed}:7946" for seed in seeds], keys=[KEY], state_dir=state_dir)
    async with (
        network.open_transport(Address(name, 7946)) as transport,
        open_cluster(config, transport=transport, rng=random.Random(name)) as cluster,
    ):
        yield cluster


async def test_what_the_disk_remembers_brings_a_member_back_without_seeds(tmp_path: Path) -> None:
    network = MemoryNetwork()
    path = snapshot_path(tmp_path, "default", "b")
    async with member(network, "a") as a:
        async with member(network, "b", "a", state_dir=tmp_path) as b:
            with trio.fail_after(60):
                await b.wait_for(lambda members: len(members) == 2)
            first = b.local
        snapshot, _ = load_snapshot(path)
        assert snapshot.epoch == first.epoch
        assert [known.name for known in snapshot.addresses] == ["a"]
        async with member(network, "b", state_dir=tmp_path) as b:
            with trio.fail_after(60):
                await b.wait_for(lambda members: len(members) == 2)
                await a.wait_for(lambda members: [m.state for m in members] == [MemberState.ALIVE] * 2)
            assert b.local.epoch > first.epoch
            assert b.local.instance != first.instance


async def test_a_write_that_hung_never_lands_on_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, ended = threading.Event(), threading.Event()
    store = snapshot_module.store_snapshot

    def slow_first(path: Path, snapshot: snapshot_module.Snapshot, suffix: str, put: snapshot_module.Put) -> str:
        def late(beside: Path, target: Path) -> bool:
            assert hangs.wait(60)
            return put(beside, target)

        try:
            return store(path, snapshot, suffix, late if suffix == "new" else put)
        finally:
            if suffix == "new":
                ended.set()

    monkeypatch.setattr(state_file, "store_snapshot", slow_first)
    network = MemoryNetwork()
    path = snapshot_path(tmp_path, "default", "b")
    async with member(network, "a"), member(network, "b", "a", state_dir=tmp_path) as b:
        with trio.fail_after(60):
            await b.wait_for(lambda members: len(members) == 2)
    hangs.set()
    assert await trio.to_thread.run_sync(ended.wait, 60)
    assert [known.name for known in load_snapshot(path)[0].addresses] == ["a"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name], "nor leaves its own file behind"


async def test_a_periodic_write_that_comes_behind_the_last_one_does_not_undo_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, goes_on = threading.Event(), threading.Event()

    def slow_last(path: Path, snapshot: snapshot_module.Snapshot, suffix: str, put: snapshot_module.Put) -> str:
        if suffix == "last":
            under_way.set()
            assert goes_on.wait(60)
        return store_snapshot(path, snapshot, suffix, put)

    monkeypatch.setattr(state_file, "store_snapshot", slow_last)
    machine: Any = SimpleNamespace(local=SimpleNamespace(epoch=7), members=list, departed=list)
    state = StateFile(tmp_path / "b.swim", pytest.fail)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(state.store_last, machine)
        assert await trio.to_thread.run_sync(under_way.wait, 60)
        with trio.CancelScope() as ended:
            ended.cancel()
            await state.keep(machine)
        goes_on.set()
    assert load_snapshot(tmp_path / "b.swim")[0].epoch == 7


async def test_a_life_in_which_nobody_was_met_keeps_the_addresses_of_the_one_before(tmp_path: Path) -> None:
    path = snapshot_path(tmp_path, "default", "b")
    before = snapshot_module.Snapshot(5, (snapshot_module.KnownAddress("a", Address("a", 7946)),))
    store_snapshot(path, before)
    async with member(MemoryNetwork(), "b", state_dir=tmp_path) as b:
        epoch = b.local.epoch
    after, fault = load_snapshot(path)
    assert (after.addresses, after.epoch, fault) == (before.addresses, epoch, "")


async def test_an_unreadable_state_file_is_an_event_and_the_member_starts_afresh(tmp_path: Path) -> None:
    path = snapshot_path(tmp_path, "default", "a")
    path.write_bytes(b"\0" * 100)
    async with member(MemoryNetwork(), "a", state_dir=tmp_path) as a, a.subscribe() as events:
        with trio.fail_after(60):
            assert isinstance(await anext(events), Snapshot)
            fault = await anext(events)
        assert isinstance(fault, SnapshotFault)
        assert str(path) in fault.reason
    assert load_snapshot(path)[1] == ""


async def test_a_state_folder_that_cannot_be_written_is_an_event_and_never_fatal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    network = MemoryNetwork()
    async with member(network, "a", state_dir=tmp_path / "file") as a, a.subscribe() as events:
        with trio.fail_after(60):
            while not isinstance(await anext(events), SnapshotFault):
                pass
        async with member(network, "b", "a"):
            with trio.fail_after(60):
                await a.wait_for(lambda members: len(members) == 2)


def test_the_epoch_rises_whatever_the_wall_clock_says() -> None:
    assert next_epoch(0, 1000) == 1000
    assert next_epoch(5000, 1000) == 5001
    assert next_epoch(999, 1000) == 1000
    assert next_epoch(EPOCH_MAX, 1000) == 1000, "a damaged value cannot lock the name out"


def test_any_two_names_have_distinct_legal_files(tmp_path: Path) -> None:
    names = ["a", "A", "a/b", "..", ".", "x" * 200, "x" * 199 + "y", "ä\u2028", "a%2Fb"]
    paths = {snapshot_path(tmp_path, "default", name) for name in names}
    paths |= {snapshot_path(tmp_path, "other", name) for name in names}
    assert len(paths) == 2 * len(names)
    for path in paths:
        assert path.parent == tmp_path
        path.write_bytes(b"x")
