"""Find one GGUF file in a hub repository, by name or by quantisation.

Speaks the hub's file API: `GET /api/models/ORG/REPO/tree/main` lists files with size and SHA-256 of large ones,
`GET /ORG/REPO/resolve/main/FILE` is the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import httpx2
import msgspec

from saiserve.models.download import CONNECT_S, SILENCE_S, DownloadError, RemoteFile

HUB_ENDPOINT: Final = "https://huggingface.co"
LISTING_BYTES_MAX: Final = 16 * 1024 * 1024
QUANTISATION_DEFAULT: Final = "Q4_K_M"

_REFERENCE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<file>[\w./-]+\.gguf)|:(?P<quant>[\w.-]+))?")


class _Large(msgspec.Struct):
    oid: str
    size: int


class _File(msgspec.Struct):
    path: str
    type: str = "file"
    size: int = 0
    lfs: _Large | None = None


@dataclass(frozen=True, slots=True)
class HubReference:
    """`ORG/REPO/FILE.gguf`, `ORG/REPO:QUANT` or `ORG/REPO`."""

    repository: str
    file: str = ""
    quantisation: str = QUANTISATION_DEFAULT


def parse_reference(text: str) -> HubReference:
    """Read the part after `hub:`.

    Raises:
        DownloadError: it is none of the three forms.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None or ".." in text:
        raise DownloadError(f"hub:{text} is not hub:ORG/REPO/FILE.gguf, hub:ORG/REPO:QUANT or hub:ORG/REPO")
    return HubReference(match["repo"], match["file"] or "", match["quant"] or QUANTISATION_DEFAULT)


async def find_file(
    reference: HubReference, *, endpoint: str = HUB_ENDPOINT, token: str = ""
) -> tuple[str, RemoteFile]:
    """The file's path in the repository and how to fetch it.

    Raises:
        DownloadError: no such repository or file, several parts, no access, or no answer.
    """
    url = f"{endpoint.rstrip('/')}/api/models/{reference.repository}/tree/main?recursive=true"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with httpx2.AsyncClient(
            timeout=httpx2.Timeout(SILENCE_S, connect=CONNECT_S), follow_redirects=True
        ) as client:
            response = await client.get(url, headers=headers)
    except httpx2.TransportError as error:
        raise DownloadError(
            f"the hub at {endpoint} does not answer ({type(error).__name__}): check the network, set HF_ENDPOINT, "
            "or give MODELS a path to a file you have"
        ) from error
    if response.status_code in (401, 403):
        raise DownloadError(f"hub:{reference.repository} needs access (status {response.status_code}): set HF_TOKEN")
    if response.status_code != 200 or len(response.content) > LISTING_BYTES_MAX:
        raise DownloadError(f"hub:{reference.repository} cannot be listed (status {response.status_code})")
    try:
        files = msgspec.json.decode(response.content, type=list[_File])
    except msgspec.DecodeError as error:
        raise DownloadError(f"the hub at {endpoint} gave no file listing for {reference.repository}") from error
    found = choose_file(reference, [file.path for file in files if file.type == "file"])
    file = next(file for file in files if file.path == found)
    return found, RemoteFile(
        url=f"{endpoint.rstrip('/')}/{reference.repository}/resolve/main/{quote(found)}",
        sha256=file.lfs.oid.removeprefix("sha256:") if file.lfs else "",
        size=file.lfs.size if file.lfs else file.size or None,
        token=token,
    )


def choose_file(reference: HubReference, paths: list[str]) -> str:
    """The one file that is meant.

    Raises:
        DownloadError: none fits, or only a split one; the message lists what there is.
    """
    models = sorted(path for path in paths if path.endswith(".gguf") and "mmproj" not in path.lower())
    if reference.file:
        if reference.file in paths:
            return reference.file
        raise DownloadError(f"hub:{reference.repository} has no file {reference.file}; it has {_list(models)}")
    wanted = [path for path in models if _has_quantisation(path, reference.quantisation)]
    whole = [path for path in wanted if not re.search(r"-\d{5}-of-\d{5}\.gguf$", path)]
    if whole:
        return min(whole, key=lambda path: (len(path), path))
    if wanted:
        raise DownloadError(
            f"hub:{reference.repository} has {reference.quantisation} only in several parts: "
            "join them with llama-gguf-split --merge and give the path"
        )
    raise DownloadError(
        f"hub:{reference.repository} has no GGUF of quantisation {reference.quantisation}; it has {_list(models)}"
    )


def _has_quantisation(path: str, quantisation: str) -> bool:
    pattern = rf"(?:^|[-._/]){re.escape(quantisation)}(?:[-._/]|$)"
    return re.search(pattern, path, re.IGNORECASE) is not None


def _list(paths: list[str]) -> str:
    shown = ", ".join(paths[:8])
    return f"{shown} and {len(paths) - 8} more" if len(paths) > 8 else shown or "no GGUF at all"
