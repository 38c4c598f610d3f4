"""What a member keeps on disk: its last epoch and the addresses it knew, so that it comes back and finds somebody.

The file is replaced whole (write beside, fsync, rename), so a crash or a full disk leaves the old one. One that
cannot be read counts as empty: a member without memory is a new life, never a member that fails to start.
Failed members are kept too, as after an outage of everybody they are all there is to dial.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgpack
from blake3 import blake3

from swimcluster.address import Address
from swimcluster.errors import DecodeError

MAGIC: Final = b"swimcluster snapshot 1\n"
CHECKSUM_BYTES: Final = 16
ADDRESSES_MAX: Final = 8192
"""Addresses kept; the first ones when there are more, so give the living first."""
FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""A file longer than any this module writes is not read."""
NAME_LENGTH_MAX: Final = 255
EPOCH_MAX: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class KnownAddress:
    """Where a member was last seen."""

    name: str
    address: Address
    failed: bool = False
    """Whether it was thought dead; worth dialling all the same."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that outlives a process."""

    epoch: int = 0
    """The last epoch this name lived in; 0 when there was none."""
    addresses: tuple[KnownAddress, ...] = ()


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the file's bytes: a first line that says what it is, a checksum, and msgpack."""
    rows = [[known.name, known.address.host, known.address.port, known.failed] for known in snapshot.addresses]
    body: bytes = msgpack.packb([snapshot.epoch, rows[:ADDRESSES_MAX]])
    return MAGIC + blake3(body).digest(CHECKSUM_BYTES) + body


def decode_snapshot(data: bytes) -> Snapshot:
    """Read the file's bytes.

    Raises:
        DecodeError: another format, cut short, or altered.
    """
    if not data.startswith(MAGIC):
        raise DecodeError("not a snapshot of this version")
    rest = data[len(MAGIC) :]
    checksum, body = rest[:CHECKSUM_BYTES], rest[CHECKSUM_BYTES:]
    if blake3(body).digest(CHECKSUM_BYTES) != checksum:
        raise DecodeError("the checksum does not fit: cut short or altered")
    try:
        epoch, rows = msgpack.unpackb(body, max_array_len=ADDRESSES_MAX, max_str_len=4 * NAME_LENGTH_MAX)
        if not (_is_whole(epoch, EPOCH_MAX) and isinstance(rows, list)):
            raise DecodeError("the epoch or the list of addresses has the wrong type")
        return Snapshot(epoch, tuple(_known(*row) for row in rows))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise DecodeError(f"the content is not a snapshot: {error}") from error


def _known(name: object, host: object, port: object, failed: object) -> KnownAddress:
    if not (isinstance(name, str) and isinstance(host, str) and isinstance(failed, bool)):
        raise DecodeError("a field of an address has the wrong type")
    if not (isinstance(port, int) and _is_whole(port, 65535) and len(name) <= NAME_LENGTH_MAX):
        raise DecodeError("a field of an address is out of range")
    return KnownAddress(name, Address(host, port), failed)


def _is_whole(value: object, largest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= largest


def load_snapshot(path: Path) -> tuple[Snapshot, str]:
    """Read `path`. Never raises: what cannot be read is an empty snapshot and a sentence that says why.

    Returns:
        the snapshot, and the fault: empty when the file was read or there is none yet.
    """
    try:
        data = _read(path)
        if len(data) > FILE_BYTES_MAX:
            return Snapshot(), f"{path}: longer than any snapshot"
        return decode_snapshot(data), ""
    except FileNotFoundError:
        return Snapshot(), ""
    except OSError as error:
        return Snapshot(), f"{path}: {error.strerror or error}"
    except DecodeError as error:
        return Snapshot(), f"{path}: {error}"


def _read(path: Path) -> bytes:
    # Without waiting: a pipe in the file's place would hold up the start for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)


Put = Callable[[Path, Path], bool]
"""Renames the first path to the second; False when the write is not wanted any more."""


def replace_file(beside: Path, path: Path) -> bool:
    """Put `beside` in the place of `path`; True, for it is done at once whatever else is being written."""
    beside.replace(path)
    return True


def store_snapshot(path: Path, snapshot: Snapshot, suffix: str = "new", put: Put = replace_file) -> str:
    """Replace `path` whole. Never raises: a full or read-only disk leaves the old file and is told.

    Args:
        suffix: tells apart the temporary files of two writes of one process that may overlap.
        put: is called once the data is on disk.
    Returns:
        the fault, empty when the snapshot is on disk or not wanted any more.
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.{suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(encode_snapshot(snapshot))
            file.flush()
            os.fsync(file.fileno())
        if put(beside, path):
            _sync_directory(path.parent)
        else:
            beside.unlink(missing_ok=True)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        return f"{path}: {error.strerror or error}"
    return ""


def _sync_directory(path: Path) -> None:
    """Make the rename itself durable; some file systems refuse, which costs only durability."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
