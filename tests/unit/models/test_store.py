"""Model files are found, fetched, resumed, checked and assembled, or a sentence says why not."""

from __future__ import annotations

import hashlib
import random
from collections import namedtuple
from pathlib import Path

import pytest

from saiserve.errors import SettingsError
from saiserve.models import download as download_module
from saiserve.models import store as store_module
from saiserve.models.catalog import CatalogEntry
from saiserve.models.download import DownloadError, RemoteFile, download
from saiserve.models.hub import HubReference, choose_file, parse_reference
from saiserve.models.store import ModelStore, file_digest, progress_line
from tests.fakes.hub import FakeHub, running_hub

BODY = random.Random(7).randbytes(300_000)
ENTRY = CatalogEntry("m", "hub:org/repo/m-Q4_K_M.gguf")


@pytest.fixture(autouse=True)
def no_waiting_between_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "RETRY_FIRST_S", 0.0)


async def test_a_hub_file_is_fetched_checked_and_found_again_without_the_hub(tmp_path: Path) -> None:
    with running_hub(FakeHub({"m-Q4_K_M.gguf": BODY})) as hub:
        store = ModelStore(tmp_path, hub.url)
        path = await store.locate(ENTRY)
        assert path.read_bytes() == BODY
        asked = len(hub.requests)
        assert await store.locate(ENTRY) == path
        assert len(hub.requests) == asked
    assert [p.name for p in path.parent.iterdir()] == ["m-Q4_K_M.gguf"]


async def test_a_file_chosen_by_quantisation_is_remembered(tmp_path: Path) -> None:
    with running_hub(FakeHub({"m-Q8_0.gguf": b"x", "m-Q4_K_M.gguf": BODY, "mmproj-Q4_K_M.gguf": b"y"})) as hub:
        entry = CatalogEntry("m", "hub:org/repo:Q4_K_M")
        path = await ModelStore(tmp_path, hub.url).locate(entry)
        assert path.read_bytes() == BODY
    assert await ModelStore(tmp_path, "http://127.0.0.1:9").locate(entry) == path


async def test_a_cut_download_goes_on_where_it_stopped(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    with running_hub(FakeHub({"m-Q4_K_M.gguf": BODY}, cut_after=[100_000, 50_000])) as hub:
        path = await ModelStore(tmp_path, hub.url).locate(
            ENTRY, progress=lambda done, total: seen.append((done, total))
        )
        assert path.read_bytes() == BODY
        assert [r[1] for r in hub.requests[1:]] == ["", "bytes=100000-", "bytes=150000-"]
    assert seen[-1] == (len(BODY), len(BODY))


async def test_a_part_of_another_version_is_not_continued(tmp_path: Path) -> None:
    with running_hub(FakeHub({"m-Q4_K_M.gguf": BODY}, cut_after=[1000] * 1)) as hub:
        hub.statuses = []
        part = tmp_path / "f.gguf.part"
        part.write_bytes(b"old bytes")
        (tmp_path / "f.gguf.part.etag").write_text('"v0"', "utf-8")
        remote = RemoteFile(f"{hub.url}/org/repo/resolve/main/m-Q4_K_M.gguf")
        assert (await download(remote, tmp_path / "f.gguf")).read_bytes() == BODY


async def test_busy_servers_are_tried_again_but_not_for_ever(tmp_path: Path) -> None:
    with running_hub(FakeHub({"m-Q4_K_M.gguf": BODY}, statuses=[503, 429])) as hub:
        assert (await ModelStore(tmp_path, hub.url).locate(ENTRY)).read_bytes() == BODY
    with running_hub(FakeHub({"m-Q4_K_M.gguf": BODY}, statuses=[503] * 50)) as hub:
        with pytest.raises(DownloadError, match="kept in"):
            await ModelStore(tmp_path / "other", hub.url).locate(ENTRY)
        assert len(hub.requests) == 1 + download_module.TRIES_MAX


async def test_bytes_of_another_digest_are_deleted_and_refused(tmp_path: Path) -> None:
    with running_hub(FakeHub({"m-Q4_K_M.gguf": BODY}, lie_about_digest=True)) as hub:
        with pytest.raises(DownloadError, match="SHA-256"):
            await ModelStore(tmp_path, hub.url).locate(ENTRY)
    assert not list(tmp_path.rglob("*.gguf*"))


async def test_a_web_page_is_not_taken_for_a_model(tmp_path: Path) -> None:
    with running_hub(FakeHub({"m-Q4_K_M.gguf": BODY}, html=True)) as hub:
        with pytest.raises(DownloadError, match="web page"):
            await ModelStore(tmp_path, hub.url).locate(ENTRY)


async def test_a_full_disk_is_noticed_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(download_module.shutil, "disk_usage", lambda _folder: usage(1, 1, 1000))
    with running_hub(FakeHub({"m-Q4_K_M.gguf": BODY})) as hub:
        with pytest.raises(DownloadError, match="free some space"):
            await ModelStore(tmp_path, hub.url).locate(ENTRY)


async def test_a_token_opens_a_gated_repository_and_stays_out_of_errors(tmp_path: Path) -> None:
    with running_hub(FakeHub({"m-Q4_K_M.gguf": BODY}, token="hf_sesame")) as hub:
        with pytest.raises(DownloadError, match="HF_TOKEN") as refused:
            await ModelStore(tmp_path, hub.url, "hf_wrong").locate(ENTRY)
        assert "hf_wrong" not in str(refused.value)
        assert (await ModelStore(tmp_path, hub.url, "hf_sesame").locate(ENTRY)).read_bytes() == BODY


async def test_no_hub_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="does not answer"):
        await ModelStore(tmp_path, "http://127.0.0.1:9").locate(ENTRY)


async def test_a_url_may_carry_a_secret_query_that_is_never_shown(tmp_path: Path) -> None:
    with running_hub(FakeHub({"m-Q4_K_M.gguf": BODY})) as hub:
        entry = CatalogEntry("m", f"url:{hub.url}/org/repo/resolve/main/missing.gguf?sig=s3cret")
        with pytest.raises(DownloadError, match="does not exist") as refused:
            await ModelStore(tmp_path, hub.url).locate(entry)
        assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("reference", "file"),
    [
        ("org/repo:Q4_K_M", "m-Q4_K_M.gguf"),
        ("org/repo:q8_0", "sub/m-Q8_0.gguf"),
        ("org/repo", "m-Q4_K_M.gguf"),
        ("org/repo/sub/m-Q8_0.gguf", "sub/m-Q8_0.gguf"),
    ],
)
def test_a_reference_chooses_one_file(reference: str, file: str) -> None:
    paths = ["README.md", "m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "sub/m-Q8_0.gguf", "m-Q2_K-00001-of-00002.gguf"]
    assert choose_file(parse_reference(reference), paths) == file


@pytest.mark.parametrize("reference", ["repo", "a/b/c", "a/../b:Q4", "a/b/../../x.gguf", ""])
def test_a_reference_of_another_form_is_refused(reference: str) -> None:
    with pytest.raises(DownloadError, match="is not hub:"):
        parse_reference(reference)


def test_what_a_repository_lacks_is_said_with_what_it_has() -> None:
    with pytest.raises(DownloadError, match=r"it has m-Q4_K_M\.gguf"):
        choose_file(HubReference("org/repo", quantisation="Q6_K"), ["m-Q4_K_M.gguf"])
    with pytest.raises(DownloadError, match="several parts"):
        choose_file(HubReference("org/repo"), ["m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf"])


async def test_parts_in_packages_are_joined_once_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, chunk in enumerate((BODY[:1000], BODY[1000:]), 1):
        folder = tmp_path / "site" / f"tinyparts_part{number}" / "data"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").touch()
        (folder / f"t.gguf.part{number:02}").write_bytes(chunk)
    (tmp_path / "site" / "tinyparts").mkdir()
    (tmp_path / "site" / "tinyparts" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    right = CatalogEntry("tiny", "parts:tinyparts", sha256=hashlib.sha256(BODY).hexdigest())
    wrong = CatalogEntry("wrong", "parts:tinyparts", sha256="0" * 64)
    store = ModelStore(tmp_path / "models")
    assert (await store.locate(right)).read_bytes() == BODY
    with pytest.raises(SettingsError, match="reinstall"):
        await store.locate(wrong)
    assert [p.name for p in (tmp_path / "models").iterdir()] == ["tiny.gguf"]


async def test_missing_files_and_packages_are_named(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    for source, words in [
        (f"path:{tmp_path}/none.gguf", "there is no file"),
        (f"path:{tmp_path}", "is a folder"),
        ("package:no_such_package/x.gguf", "pip install"),
        ("parts:no_such_package", "pip install"),
        ("simulated:x", "has no file"),
    ]:
        with pytest.raises(SettingsError, match=words):
            await store.locate(CatalogEntry("m", source))


def test_a_digest_tells_files_and_templates_apart(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(bytes(20_000_000))
    first = file_digest(path)
    assert file_digest(path) == first
    assert len(first) == store_module.DIGEST_BYTES
    assert file_digest(path, "{{ other }}") != first
    with path.open("r+b") as file:
        file.seek(19_999_990)
        file.write(b"changed")
    assert file_digest(path) != first


@pytest.mark.parametrize("live", [True, False])
def test_progress_is_drawn_without_flooding(live: bool) -> None:
    lines: list[str] = []
    report = progress_line("m", lines.append, live=live)
    for done in range(0, 1_000_001, 1000):
        report(done, 1_000_000)
    assert 10 <= len(lines) <= 102
    assert lines[-1].endswith("\n")
    assert ("\r" in lines[0]) is live
