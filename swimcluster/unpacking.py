"""msgpack within limits: what bytes may inflate to is bounded by what this node takes, whatever their headers claim."""

from __future__ import annotations

from typing import Any

import msgpack

from swimcluster.errors import DecodeError

SMALL_BYTES = 4096
"""Bytes up to this size cannot inflate to more than a few hundred kilobytes whatever they hold."""
_FAULTS = (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException)


def unpack(data: bytes, array_max: int) -> Any:
    """Return the one value in `data`.

    Args:
        array_max: longest array taken, where `data` is not small.
    Raises:
        DecodeError: not msgpack, or over a limit.
    """
    # Lengths are bounded by the data's own; the refused types cannot nest beyond a budgeted datagram, and larger
    # bodies get explicit limits.
    try:
        if len(data) <= SMALL_BYTES:
            return msgpack.unpackb(data, use_list=False)
        return msgpack.unpackb(data, use_list=False, max_array_len=array_max, max_map_len=0, max_ext_len=0)
    except _FAULTS as error:
        raise DecodeError("not msgpack within the limits") from error


def unpack_body(data: bytes, messages_max: int) -> tuple[Any, int]:
    """Return the value of a packet's body, and how many messages at its end were more than `messages_max`.

    Raises:
        DecodeError: not msgpack, or over a limit other than that.
    """
    try:
        return unpack(data, messages_max), 0
    except DecodeError:
        if len(data) <= SMALL_BYTES:
            raise
        return _unpack_beginning(data, messages_max)


def _unpack_beginning(data: bytes, messages_max: int) -> tuple[Any, int]:
    """Read as much of a body as fits. The rest is counted by the header alone: nobody here would keep it."""
    unpacker = msgpack.Unpacker(
        use_list=False, max_array_len=messages_max, max_map_len=0, max_ext_len=0, max_buffer_size=len(data)
    )
    unpacker.feed(data)
    try:
        if unpacker.read_array_header() != 4:
            raise DecodeError("not an array of four fields")
        fields = [unpacker.unpack() for _ in range(3)]
        count = unpacker.read_array_header()
        messages = tuple([unpacker.unpack() for _ in range(min(count, messages_max))])
    except _FAULTS as error:
        raise DecodeError("not msgpack within the limits") from error
    left_out = count - len(messages)
    # A message has a byte at least: a header that claims more is false, and without any left out another limit broke.
    if not 0 < left_out <= len(data) - unpacker.tell():
        raise DecodeError("not msgpack within the limits")
    return (*fields, messages), left_out
