"""Where a model's file is on this machine, fetching or assembling it once when it is not there yet."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio
from blake3 import blake3

from saiserve.config import Settings
from saiserve.errors import SettingsError
from saiserve.models.catalog import CatalogEntry
from saiserve.models.download import Progress, RemoteFile, download, sha256_of
from saiserve.models.hub import HUB_ENDPOINT, find_file, parse_reference
from saiserve.models.part_file import part_of

SAMPLE_BYTES: Final = 64 * 1024
SAMPLES: Final = 64
HEAD_BYTES: Final = 4 * 1024 * 1024
"""Enough for a GGUF's metadata; vocabularies beyond it are caught by the samples."""
DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class ModelStore:
    """Finds and fetches files. `folder` is where fetched files live; it is made on first use."""

    folder: Path
    hub_endpoint: str = HUB_ENDPOINT
    hub_token: str = ""

    async def locate(self, entry: CatalogEntry, *, progress: Progress | None = None) -> Path:
        """The model's file, fetched or assembled if need be.

        Raises:
            SettingsError: there is no such file or it cannot be had; one sentence says why and what to do.
        """
        scheme, _, rest = entry.source.partition(":")
        match scheme:
            case "path":
                return await trio.to_thread.run_sync(_local_file, entry, Path(rest).expanduser())
            case "package":
                package, _, name = rest.partition("/")
                return await trio.to_thread.run_sync(_package_file, entry, package, name)
            case "parts":
                return await self._assemble(entry, rest)
            case "hub":
                return await self._from_hub(entry, rest, progress)
            case "url":
                return await download(RemoteFile(rest, sha256=entry.sha256), self._url_file(rest), progress=progress)
            case _:
                raise SettingsError(f"model {entry.id!r} has the source {entry.source!r}, which has no file")

    async def present(self, entry: CatalogEntry) -> Path | None:
        """The model's file if it is on this machine already; nothing is fetched or assembled.

        Raises:
            SettingsError: it can only ever be here, and is not.
        """
        scheme, _, rest = entry.source.partition(":")
        match scheme:
            case "path" | "package":
                return await self.locate(entry)
            case "parts":
                file = self.folder / f"{entry.id}.gguf"
            case "hub":
                return self._kept_from_hub(rest)
            case "url":
                file = self._url_file(rest)
            case _:
                return None
        return file if file.exists() else None

    def _url_file(self, url: str) -> Path:
        name = f"{blake3(url.encode()).hexdigest(length=8)}-{url.partition('?')[0].rsplit('/', 1)[-1]}"
        return self.folder / name

    def _kept_from_hub(self, reference_text: str) -> Path | None:
        """The file that was fetched before; one chosen by quantisation is found again without asking the hub."""
        reference = parse_reference(reference_text)
        home = self.folder / reference.repository.replace("/", "--")
        name = reference.file
        remembered = home / f"{reference.quantisation}.chosen"
        if not name and remembered.exists():
            name = remembered.read_text("utf-8")
        return home / name if name and (home / name).exists() else None

    async def _from_hub(self, entry: CatalogEntry, reference_text: str, progress: Progress | None) -> Path:
        kept = self._kept_from_hub(reference_text)
        if kept is not None:
            return kept
        reference = parse_reference(reference_text)
        home = self.folder / reference.repository.replace("/", "--")
        path, remote = await find_file(reference, endpoint=self.hub_endpoint, token=self.hub_token)
        if entry.sha256:
            remote = RemoteFile(remote.url, entry.sha256, remote.size, remote.token)
        file = await download(remote, home / path, progress=progress)
        if not reference.file:
            (home / f"{reference.quantisation}.chosen").write_text(path, "utf-8")
        return file

    async def _assemble(self, entry: CatalogEntry, package: str) -> Path:
        destination = self.folder / f"{entry.id}.gguf"
        if destination.exists():
            return destination
        parts = await trio.to_thread.run_sync(_package_parts, entry, package)
        self.folder.mkdir(parents=True, exist_ok=True)
        async with part_of(destination) as building:
            if building is not None:
                await trio.to_thread.run_sync(_join, entry, package, parts, building)
                building.replace(destination)
        return destination


def _join(entry: CatalogEntry, package: str, parts: Sequence[Path], building: Path) -> None:
    """Write a model out of its parts; what is not that model is removed again."""
    needed = sum(part.stat().st_size for part in parts)
    if shutil.disk_usage(building.parent).free < needed:
        raise SettingsError(f"{building.parent} has no room for {needed / 1e6:.0f} MB of {entry.id}: free some space")
    try:
        with building.open("wb") as out:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, out, 1 << 20)
            out.flush()
            os.fsync(out.fileno())
    except OSError:
        building.unlink(missing_ok=True)
        raise
    found = sha256_of(building)
    if entry.sha256 and found != entry.sha256:
        building.unlink()
        raise SettingsError(f"the parts of {package} give SHA-256 {found}, not {entry.sha256}: reinstall it")


def file_digest(path: Path, template: str = "") -> bytes:
    """Eight bytes that tell model files and templates apart: equal digests may continue each other's answers.

    Samples the file instead of reading gigabytes: its size, its head, its tail and 64 places between.
    """
    hasher = blake3()
    size = path.stat().st_size
    hasher.update(size.to_bytes(8, "big"))
    with path.open("rb") as file:
        hasher.update(file.read(HEAD_BYTES))
        for sample in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * (sample + 1) // SAMPLES)
            hasher.update(file.read(SAMPLE_BYTES))
    hasher.update(template.encode())
    return hasher.digest(length=DIGEST_BYTES)


def _local_file(entry: CatalogEntry, path: Path) -> Path:
    if not path.exists():
        raise SettingsError(f"model {entry.id!r}: there is no file {path}")
    if path.is_dir():
        raise SettingsError(f"model {entry.id!r}: {path} is a folder, give the .gguf file in it")
    return path


def _package_folder(entry: CatalogEntry, package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SettingsError(
            f"model {entry.id!r} comes with the package {package}, which is not installed: "
            "pip install '.[demo]' in the source folder"
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _package_file(entry: CatalogEntry, package: str, name: str) -> Path:
    return _local_file(entry, _package_folder(entry, package) / name)


def _package_parts(entry: CatalogEntry, package: str) -> Sequence[Path]:
    _package_folder(entry, package)
    parts: list[Path] = []
    while importlib.util.find_spec(f"{package}_part{len(parts) + 1}") is not None:
        folder = _package_folder(entry, f"{package}_part{len(parts) + 1}")
        parts.extend(sorted((folder / "data").glob("*.gguf.part*")))
    if not parts:
        raise SettingsError(f"model {entry.id!r}: the part packages of {package} are not installed: reinstall it")
    return parts


def progress_line(name: str, write: Callable[[str], None], *, live: bool) -> Progress:
    """A progress reporter: one line redrawn on a terminal, one line per tenth elsewhere."""
    last = -1

    def report(done: int, total: int | None) -> None:
        nonlocal last
        if total is None:
            step = done >> 26
            text = f"{name}: {done / 1e6:,.0f} MB"
        else:
            step = done * (100 if live else 10) // max(1, total)
            filled = done * 30 // max(1, total)
            bar = f" [{'#' * filled}{'.' * (30 - filled)}]" if live else ""
            text = f"{name}:{bar} {done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
        if step == last:
            return
        last = step
        end = "\n" if not live or (total is not None and done >= total) else ""
        write(("\r" if live else "") + text + end)

    return report


def store_from(settings: Settings) -> ModelStore:
    """The store that these settings describe."""
    return ModelStore(settings.model_dir, settings.hub_endpoint or HUB_ENDPOINT, settings.hub_token)
