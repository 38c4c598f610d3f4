"""Fetch one file over HTTP: resumed where it stopped, checked against its digest, never half-visible.

The file grows as `NAME.part` beside its place and is renamed when it is whole and right, so a reader sees either
nothing or the model. Nodes that share the folder fetch it once. Ranges follow RFC 9110 §14; `If-Range` makes sure that
a part belongs to the same version.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2
import trio

from saiserve.errors import SettingsError
from saiserve.models.part_file import part_of

CONNECT_S: Final = 20.0
SILENCE_S: Final = 60.0
"""Longest wait for the next bytes."""
TRIES_MAX: Final = 5
"""Consecutive tries without progress before giving up."""
RETRY_FIRST_S: Final = 1.0
SPACE_RESERVE_BYTES: Final = 256 * 1024 * 1024
"""Left free on the disk after a download."""
REDIRECTS_MAX: Final = 5

Progress = Callable[[int, int | None], None]
"""Called with (bytes so far, bytes in all or None)."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """What to fetch and what it must turn out to be; empty or None where nobody said."""

    url: str
    sha256: str = ""
    size: int | None = None
    token: str = ""
    """Bearer token; sent to the first host only, never to one it redirects to."""


class DownloadError(SettingsError):
    """A model could not be fetched. The part that arrived is kept and used by the next try."""


async def download(remote: RemoteFile, destination: Path, *, progress: Progress | None = None) -> Path:
    """Fetch `remote` to `destination`; returns it. A destination that exists is taken as it is.

    While another process fetches the same, this waits for what comes of it.

    Raises:
        DownloadError: no space, no server, a refusal, or bytes of another digest (which are deleted).
    """
    if destination.exists():
        return destination
    await trio.to_thread.run_sync(lambda: destination.parent.mkdir(parents=True, exist_ok=True))
    async with part_of(destination) as part:
        if part is not None:
            await _fetch_whole(remote, part, progress)
            await trio.to_thread.run_sync(part.replace, destination)
    return destination


async def _fetch_whole(remote: RemoteFile, part: Path, progress: Progress | None) -> None:
    timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
    async with httpx2.AsyncClient(timeout=timeout, follow_redirects=True, max_redirects=REDIRECTS_MAX) as client:
        failures = 0
        while True:
            before = _size(part)
            try:
                await _fetch(client, remote, part, progress)
                break
            except (httpx2.TransportError, _CutError) as error:
                failures = failures + 1 if _size(part) <= before else 0
                if failures >= TRIES_MAX:
                    raise DownloadError(
                        f"{_shown(remote.url)} could not be fetched ({type(error).__name__}); "
                        f"{_size(part):,} bytes are kept in {part} and the next try goes on from there"
                    ) from error
                await trio.sleep(RETRY_FIRST_S * 2**failures)
    await _verify(remote, part)


class _CutError(Exception):
    """The server ended the body early."""


async def _fetch(client: httpx2.AsyncClient, remote: RemoteFile, part: Path, progress: Progress | None) -> None:
    have = _size(part)
    if remote.size is not None and have == remote.size:
        return
    tag_file = part.with_name(part.name + ".etag")
    tag = tag_file.read_text("utf-8") if have and tag_file.exists() else ""
    headers = {"Accept-Encoding": "identity"}
    if remote.token:
        headers["Authorization"] = f"Bearer {remote.token}"
    if have and tag:
        headers |= {"Range": f"bytes={have}-", "If-Range": tag}
    async with client.stream("GET", remote.url, headers=headers) as response:
        if response.status_code == 416:
            os.truncate(part, 0)
            raise _CutError("the server's file is shorter than the part kept here")
        if response.status_code >= 500 or response.status_code == 429:
            raise _CutError(f"status {response.status_code}")
        if response.status_code not in (200, 206):
            raise DownloadError(_refusal(remote, response.status_code))
        offset = _range_start(response.headers.get("content-range", "")) if response.status_code == 206 else 0
        if offset not in (0, have):
            raise _CutError("the server answered another range than the one asked for")
        length = response.headers.get("content-length", "")
        total = offset + int(length) if length.isdigit() else remote.size
        if (response.headers.get("content-type", "")).startswith("text/html"):
            raise DownloadError(f"{_shown(remote.url)} answers with a web page, not a model file: check the address")
        _require_space(part.parent, (total or 0) - offset)
        etag = response.headers.get("etag", "")
        os.truncate(part, offset)  # first: no byte of another version may ever lie beside this version's tag
        tag_file.write_text("" if etag.startswith("W/") else etag, "utf-8")
        await _write(response, part, offset, total, progress)
    tag_file.unlink(missing_ok=True)


async def _write(
    response: httpx2.Response, part: Path, offset: int, total: int | None, progress: Progress | None
) -> None:
    async with await trio.open_file(part, "r+b") as file:
        await file.seek(offset)
        done = offset
        # Raw and unbuffered: what arrived before a cut must reach the part file.
        async for chunk in response.aiter_raw():
            await file.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
        await file.truncate(done)
        await file.flush()
        await trio.to_thread.run_sync(os.fsync, file.wrapped.fileno())
    if total is not None and done < total:
        raise _CutError(f"the body ended after {done} of {total} bytes")


async def _verify(remote: RemoteFile, part: Path) -> None:
    size = _size(part)
    if remote.size is not None and size != remote.size:
        part.unlink(missing_ok=True)
        raise DownloadError(
            f"{_shown(remote.url)} has {size:,} bytes where {remote.size:,} were announced; it was deleted, try again"
        )
    if not remote.sha256:
        return
    found = await trio.to_thread.run_sync(sha256_of, part)
    if found != remote.sha256.lower():
        part.unlink(missing_ok=True)
        raise DownloadError(
            f"{_shown(remote.url)} has SHA-256 {found} where {remote.sha256} was expected; it was deleted, try again"
        )


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refusal(remote: RemoteFile, status: int) -> str:
    where = _shown(remote.url)
    match status:
        case 401 | 403:
            return f"{where} refuses access (status {status}): set HF_TOKEN to a token that may read it"
        case 404:
            return f"{where} does not exist (status 404): check the model's address"
        case _:
            return f"{where} answered status {status}"


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed + SPACE_RESERVE_BYTES > free:
        raise DownloadError(
            f"{folder} has {free / 1e9:.1f} GB free and the model needs {needed / 1e9:.1f} GB more and 0.3 GB reserve: "
            "free some space or set MODEL_DIR to another disk"
        )


def _range_start(header: str) -> int:
    match = re.match(r"bytes (\d+)-", header)
    return int(match[1]) if match else -1


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _shown(url: str) -> str:
    """The URL without query and user part, which may hold secrets."""
    parsed = httpx2.URL(url)
    return f"{parsed.scheme}://{parsed.host}{f':{parsed.port}' if parsed.port else ''}{parsed.path}"
