"""One message on a byte stream: four bytes of length, big-endian, then that many bytes.

The length is checked against a limit before anything is buffered, so a stranger cannot make us allocate.
"""

from __future__ import annotations

import struct

import trio

from swimcluster.errors import ExchangeError

LENGTH = struct.Struct(">I")
READ_BYTES_MAX = 64 * 1024
"""Most bytes taken from a stream in one read."""


def frame(data: bytes) -> bytes:
    """Return `data` with its length in front.

    Raises:
        ExchangeError: more bytes than four bytes can count.
    """
    if len(data) >= 1 << 32:
        raise ExchangeError(f"{len(data)} bytes do not fit one message")
    return LENGTH.pack(len(data)) + data


async def read_frame(stream: trio.abc.ReceiveStream, *, bytes_max: int) -> bytes:
    """Read one message of at most `bytes_max` bytes.

    Raises:
        ExchangeError: the stream ended early, broke, or announced too much.
    """
    header = await _read_exactly(stream, LENGTH.size)
    (length,) = LENGTH.unpack(header)
    if length > bytes_max:
        raise ExchangeError(f"a message of {length} bytes was announced, the limit is {bytes_max}")
    return await _read_exactly(stream, length)


async def _read_exactly(stream: trio.abc.ReceiveStream, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        try:
            piece = await stream.receive_some(min(length - len(data), READ_BYTES_MAX))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ExchangeError(f"the connection broke after {len(data)} of {length} bytes") from error
        if not piece:
            raise ExchangeError(f"the connection ended after {len(data)} of {length} bytes")
        data += piece
    return bytes(data)
