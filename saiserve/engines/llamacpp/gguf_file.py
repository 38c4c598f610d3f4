"""What can be known of a GGUF file without llama.cpp, and whether it is one: checked before native code sees it.

llama.cpp's loader ends its process on some damaged files; most damage is named here instead. Reads the header and the
sizes only, never the weights. Source: the GGUF specification, version 3.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
VERSIONS = (2, 3)
KEYS_MAX = 65_536
TENSORS_MAX = 262_144
KEY_BYTES_MAX = 65_535
DIMENSIONS_MAX = 4
ARRAY_KEPT_MAX = 1_024
"""Longer arrays (vocabularies) are measured and skipped."""
STRING_KEPT_BYTES_MAX = 1_000_000

SCALARS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
"""Metadata type number to `struct` format."""
STRING, ARRAY = 8, 9

BLOCKS: dict[int, tuple[int, int]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip
"""Tensor type number to (values per block, bytes per block); types not listed are not measured."""


class ModelFileError(Exception):
    """The file cannot be served. The message is one sentence that names the file and the reason."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The header's contents."""

    path: Path
    bytes_total: int
    """Of all parts, where a model lies in several files."""
    tensors: int
    metadata: dict[str, Any] = field(repr=False)
    """Scalars, strings and short arrays by key; long arrays as their length."""
    weights: dict[int, int] = field(default_factory=dict, repr=False)
    """How many weights there are of each of ggml's types."""

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the model's construction."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def chat_template(self) -> str | None:
        """The Jinja text in the file, if there is one."""
        text = self.metadata.get("tokenizer.chat_template")
        return text if isinstance(text, str) else None

    def value(self, key: str) -> Any:
        """What the header says of this under the architecture's own name; None when it says nothing."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def number(self, key: str) -> int:
        """The same as a whole number: the largest of a list, 0 for anything else."""
        value = self.value(key)
        if isinstance(value, list):
            value = max((item for item in value if isinstance(item, int)), default=0)
        return value if isinstance(value, int) and value > 0 else 0


class _CutError(Exception):
    """The header goes on beyond the end of the file."""


class _OddError(Exception):
    """The header says something that cannot be."""


class _Reader:
    """A cursor over the mapped file; every length is checked before it is believed."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self._data = data
        self._size = size
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > self._size:
            raise _CutError
        piece = self._data[self.at : end]
        self.at = end
        return piece

    def skip(self, count: int) -> None:
        if self.at + count > self._size:
            raise _CutError
        self.at += count

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text(self, bytes_max: int) -> str:
        length = self.number("<Q")
        if length > self._size:
            raise _OddError(f"a string of {length} bytes is announced")
        if length > bytes_max:
            raise _OddError(f"a string of {length} bytes where at most {bytes_max} make sense")
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self.number(SCALARS[kind])
        if kind == STRING:
            return self.text(STRING_KEPT_BYTES_MAX)
        if kind == ARRAY:
            return self._array()
        raise _OddError(f"metadata of unknown type {kind}")

    def _array(self) -> Any:
        kind, count = self.number("<I"), self.number("<Q")
        if count > self._size:
            raise _OddError(f"an array of {count} elements is announced")
        if kind in SCALARS:
            width = struct.calcsize(SCALARS[kind])
            if count > ARRAY_KEPT_MAX:
                self.skip(width * count)
                return count
            return [self.number(SCALARS[kind]) for _ in range(count)]
        if kind != STRING:
            raise _OddError(f"an array of unknown type {kind}")
        if count <= ARRAY_KEPT_MAX:
            return [self.text(STRING_KEPT_BYTES_MAX) for _ in range(count)]
        self._skip_strings(count)
        return count

    def _skip_strings(self, count: int) -> None:
        data, size, at = self._data, self._size, self.at
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > size:
                raise _CutError
            at += 8 + unpack(data, at)[0]
            if at > size:
                raise _CutError
        self.at = at


def read_model_file(path: Path) -> ModelFile:
    """Read and check a model file's header and that all its tensors lie inside the file.

    Raises:
        ModelFileError: it is missing, unreadable, not a GGUF, damaged, cut short, or holds no weights.
    """
    size = _size_of(path)
    try:
        with path.open("rb") as file:
            head = file.read(512)
            _check_head(path, head, size)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(path, _Reader(data, size), size)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    except _CutError:
        raise ModelFileError(f"{path} is cut short: its header goes on beyond its {size} bytes") from None
    except _OddError as error:
        raise ModelFileError(f"{path} is damaged: {error}") from None


def _size_of(path: Path) -> int:
    try:
        status = path.stat()
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist") from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    if stat.S_ISDIR(status.st_mode):
        raise ModelFileError(f"{path} is a directory, not a model file")
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(f"{path} is not a regular file")
    if not os.access(path, os.R_OK):
        raise ModelFileError(f"{path} cannot be read: permission denied")
    return status.st_size


def _check_head(path: Path, head: bytes, size: int) -> None:
    if size == 0:
        raise ModelFileError(f"{path} is empty")
    start = head.lstrip()[:64].lower()
    if head.startswith(b"version https://git-lfs"):
        raise ModelFileError(f"{path} is a Git LFS pointer, not the model itself: fetch it with `git lfs pull`")
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        raise ModelFileError(f"{path} is a web page, not a model: the download was redirected to one")
    if not head.startswith(MAGIC):
        raise ModelFileError(f"{path} is not a GGUF file: it begins with {head[:4]!r}")


def _read(path: Path, reader: _Reader, size: int) -> ModelFile:
    reader.skip(len(MAGIC))
    version = reader.number("<I")
    if version not in VERSIONS:
        raise _OddError(f"GGUF version {version} is not known (big-endian files are not supported)")
    tensors, keys = reader.number("<Q"), reader.number("<Q")
    if tensors > TENSORS_MAX or keys > KEYS_MAX:
        raise _OddError(f"{tensors} tensors and {keys} metadata keys are announced")
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = reader.text(KEY_BYTES_MAX)
        if not key or key in metadata:
            raise _OddError(f"metadata key {key!r} is repeated" if key else "a metadata key is empty")
        metadata[key] = reader.value(reader.number("<I"))
    if not metadata.get("general.architecture"):
        raise _OddError("it does not name an architecture")
    if tensors == 0:
        raise ModelFileError(f"{path} holds a vocabulary but no weights")
    weights: Counter[int] = Counter()
    end = max(_tensor_end(reader, weights) for _ in range(tensors))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise _OddError(f"an alignment of {alignment!r}")
    start = (reader.at + alignment - 1) // alignment * alignment
    if start + end > size:
        raise ModelFileError(f"{path} is cut short: {size} bytes where its weights need {start + end}")
    return ModelFile(path, size + _other_parts_bytes(path, metadata), tensors, metadata, dict(weights))


def _other_parts_bytes(path: Path, metadata: dict[str, Any]) -> int:
    """Sizes of the files that hold the rest of the model; llama.cpp finds them by their names, too."""
    count, number = metadata.get("split.count", 1), metadata.get("split.no", 0)
    if not isinstance(count, int) or not isinstance(number, int):
        raise _OddError(f"it is part {number!r} of {count!r}")
    if number:
        raise ModelFileError(f"{path} is part {number + 1} of {count} of a model: give the first one")
    if count < 2:
        return 0
    end = f"-00001-of-{count:05}.gguf"
    if not path.name.endswith(end):
        raise ModelFileError(f"{path} is the first of {count} parts and must be named so: …{end}")
    start = path.name.removesuffix(end)
    return sum(_size_of(path.with_name(f"{start}-{part:05}-of-{count:05}.gguf")) for part in range(2, count + 1))


def _tensor_end(reader: _Reader, weights: Counter[int]) -> int:
    """Offset of the first byte after a tensor, counted from the data's beginning; its values are added to `weights`."""
    name = reader.text(KEY_BYTES_MAX)
    dimensions = reader.number("<I")
    if not name or dimensions > DIMENSIONS_MAX:
        raise _OddError(f"tensor {name!r} with {dimensions} dimensions")
    values = 1
    for _ in range(dimensions):
        values *= reader.number("<Q")
    kind, offset = reader.number("<I"), reader.number("<Q")
    weights[kind] += values
    per_block, block_bytes = BLOCKS.get(kind, (1, 0))
    return int(offset + -(-values // per_block) * block_bytes)
