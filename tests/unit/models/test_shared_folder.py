"""Nodes of one machine share the folder of models: each sees a whole model or none, however another ends."""

from __future__ import annotations

import fcntl
import hashlib
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from saiserve.models import download as download_module
from saiserve.models import part_file
from saiserve.models import store as store_module
from saiserve.models.catalog import CatalogEntry
from saiserve.models.download import DownloadError, RemoteFile, download
from saiserve.models.part_file import part_of
from saiserve.models.store import ModelStore
from tests.fakes.hub import FakeHub, running_hub

BODY = random.Random(8).randbytes(300_000)
FILE = "m-Q4_K_M.gguf"
HOLDER = """
import fcntl, sys
part = open(sys.argv[1], "ab")
fcntl.flock(part, fcntl.LOCK_EX)
part.write(b"half")
part.flush()
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_file, "WAIT_POLL_S", 0.01)
    monkeypatch.setattr(download_module, "RETRY_FIRST_S", 0.0)


def remote(hub: FakeHub) -> RemoteFile:
    return RemoteFile(f"{hub.url}/org/repo/resolve/main/{FILE}")


async def test_two_that_need_a_model_at_once_fetch_it_once(tmp_path: Path) -> None:
    with running_hub(FakeHub({FILE: BODY})) as hub:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(download, remote(hub), tmp_path / "m.gguf")
        assert len(hub.requests) == 1
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("m.gguf", BODY)]


async def test_who_waited_for_one_that_failed_fetches_itself(tmp_path: Path) -> None:
    failed: list[DownloadError] = []

    async def fetch(hub: FakeHub) -> None:
        try:
            await download(remote(hub), tmp_path / "m.gguf")
        except DownloadError as error:
            failed.append(error)

    with running_hub(FakeHub({FILE: BODY}, statuses=[403])) as hub:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch, hub)
            nursery.start_soon(fetch, hub)
    assert len(failed) == 1
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("m.gguf", BODY)]


async def test_a_refused_download_leaves_nothing(tmp_path: Path) -> None:
    with running_hub(FakeHub({})) as hub:
        with pytest.raises(DownloadError, match="does not exist"):
            await download(remote(hub), tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []


async def test_another_process_is_waited_for_until_it_ends_and_what_it_left_is_kept(tmp_path: Path) -> None:
    part = tmp_path / "m.gguf.part"
    command = [sys.executable, "-c", HOLDER, str(part)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with trio.move_on_after(0.1) as waiting:
            async with part_of(tmp_path / "m.gguf"):
                pytest.fail("two write it")
        assert waiting.cancelled_caught
        holder.kill()
    async with part_of(tmp_path / "m.gguf") as own:
        assert own == part
        assert own.read_bytes() == b"half"


async def test_a_file_system_without_locks_is_written_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(37, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with running_hub(FakeHub({FILE: BODY})) as hub:
        assert (await download(remote(hub), tmp_path / "m.gguf")).read_bytes() == BODY


async def test_parts_in_packages_are_joined_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = tmp_path / "site" / "onceparts_part1" / "data" / "t.gguf.part01"
    part.parent.mkdir(parents=True)
    part.write_bytes(BODY)
    for name in ("onceparts", "onceparts_part1"):
        (tmp_path / "site" / name).mkdir(exist_ok=True)
        (tmp_path / "site" / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    joined: list[Path] = []

    def digest(path: Path) -> str:
        joined.append(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr(store_module, "sha256_of", digest)
    entry = CatalogEntry("tiny", "parts:onceparts", sha256=hashlib.sha256(BODY).hexdigest())
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "tiny.gguf.part").write_bytes(b"what a process that was killed had joined")
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(ModelStore(folder).locate, entry)
    assert len(joined) == 1
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("tiny.gguf", BODY)]


async def test_a_process_killed_before_the_first_byte_of_a_new_version_mixes_it_with_no_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    async def killed(*_: Any) -> None:
        raise KilledError

    (tmp_path / "m.gguf.part").write_bytes(b"old bytes")
    (tmp_path / "m.gguf.part.etag").write_text('"v0"', "utf-8")
    with running_hub(FakeHub({FILE: BODY})) as hub:
        with monkeypatch.context() as patched:
            patched.setattr(download_module, "_write", killed)
            with pytest.raises(KilledError):
                await download(remote(hub), tmp_path / "m.gguf")
        assert (await download(remote(hub), tmp_path / "m.gguf")).read_bytes() == BODY
