"""The file of the flight recorder: a first line, a checksum, and msgpack of settings, checkpoints and inputs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import msgpack
from blake3 import blake3

from swimcluster.address import Address
from swimcluster.config import Config
from swimcluster.errors import DecodeError, SwimclusterError

FORMAT: Final = 2
"""Goes up when what was recorded before no longer runs: the machine's classes or inputs were renamed or changed."""
_TITLE: Final = b"swimcluster flight recorder "
MAGIC: Final = _TITLE + b"%d\n" % FORMAT
CHECKSUM_BYTES: Final = 16
DUMP_BYTES_MAX: Final = 256 * 1024 * 1024
SECRET_FIELDS: Final = frozenset({"keys", "state_dir"})
"""Settings that no dump carries: secrets, and paths of the machine it comes from."""
_ADDRESS: Final = "address"


class Input(NamedTuple):
    """One call to the machine: `call(now, *arguments)`."""

    now: int
    call: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A machine as it was, and what it was given from then on."""

    checkpoint: bytes
    key_ids: tuple[bytes, ...]
    is_secret: bool
    inputs: list[Input]


@dataclass(frozen=True, slots=True)
class Dump:
    """All that a recorder kept. `config` comes back from a file without secrets, as an insecure one."""

    config: Config
    segments: list[SegmentRecord]


def encode_dump(dump: Dump) -> bytes:
    """Return the bytes of a dump."""
    settings = {
        item.name: getattr(dump.config, item.name) for item in fields(dump.config) if item.name not in SECRET_FIELDS
    }
    segments = [[s.checkpoint, s.key_ids, s.is_secret, s.inputs] for s in dump.segments]
    body: bytes = msgpack.packb([settings, segments], default=_pack_other, strict_types=False)
    return MAGIC + blake3(body).digest(CHECKSUM_BYTES) + body


def decode_dump(data: bytes) -> Dump:
    """Read the bytes of a dump; runs nothing in it.

    Raises:
        DecodeError: not a dump, one of another format, cut short, or altered.
    """
    _check_first_line(data[:64])
    if len(data) > DUMP_BYTES_MAX:
        raise DecodeError(f"a dump of {len(data)} bytes: at most {DUMP_BYTES_MAX} are read")
    rest = data[len(MAGIC) :]
    body = rest[CHECKSUM_BYTES:]
    if blake3(body).digest(CHECKSUM_BYTES) != rest[:CHECKSUM_BYTES]:
        raise DecodeError("the checksum does not fit: the dump is cut short or altered")
    try:
        settings, segments = msgpack.unpackb(body, use_list=False, object_hook=_unpack_address)
        config = Config(**{**settings, "keys": (), "insecure": True})
        return Dump(config, [_segment(*segment) for segment in segments])
    except (ValueError, TypeError, KeyError, SwimclusterError) as error:
        raise DecodeError(f"the content is not a dump: {error}") from error


def _check_first_line(beginning: bytes) -> None:
    if beginning.startswith(MAGIC):
        return
    line, end, _ = beginning.partition(b"\n")
    number = line.removeprefix(_TITLE)
    if not end or number == line or not number.isdigit():
        raise DecodeError("not a dump of a flight recorder")
    raise DecodeError(
        f"a dump of format {number.decode()}, and this release reads format {FORMAT}: "
        f"replay it with the release that recorded it"
    )


def _segment(checkpoint: bytes, key_ids: tuple[bytes, ...], is_secret: bool, inputs: Any) -> SegmentRecord:
    return SegmentRecord(checkpoint, key_ids, is_secret, [Input(*item) for item in inputs])


def _pack_other(value: object) -> object:
    if isinstance(value, Address):
        return {_ADDRESS: [value.host, value.port]}
    # A program gave what no input takes: the machine refused it, and will refuse the text that stands for it.
    return f"{type(value).__name__} object"


def _unpack_address(value: dict[str, Any]) -> object:
    return Address(*value[_ADDRESS]) if value.keys() == {_ADDRESS} else value
