"""Messages on a byte stream between a node and its engine process: four bytes of length, then msgpack.

Pure: bytes in, messages out. The socket belongs to the supervisor on one side and the worker on the other.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from saiserve import limits

HEADER_BYTES = 4
"""Length of what follows, unsigned, big-endian."""

MessageT = TypeVar("MessageT")


class FrameError(Exception):
    """The stream is not ours or is damaged; nothing after this point can be read."""


_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: msgspec.Struct) -> bytes:
    """One message, ready to be written.

    Raises:
        FrameError: it is longer than `limits.ENGINE_MESSAGE_BYTES_MAX`; nothing was written.
    """
    buffer = bytearray(HEADER_BYTES)
    _encoder.encode_into(message, buffer, HEADER_BYTES)
    size = len(buffer) - HEADER_BYTES
    if size > limits.ENGINE_MESSAGE_BYTES_MAX:
        raise FrameError(f"a message of {size} bytes exceeds the limit of {limits.ENGINE_MESSAGE_BYTES_MAX}")
    buffer[:HEADER_BYTES] = size.to_bytes(HEADER_BYTES, "big")
    return bytes(buffer)


class FrameDecoder(Generic[MessageT]):
    """Collects bytes and gives whole messages of one tagged union, in order."""

    def __init__(self, kind: Any) -> None:
        """`kind` is the union of message types that may arrive."""
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[MessageT]:
        """Take bytes as they come; return the messages they complete.

        Raises:
            FrameError: too long or not a known message; the decoder is of no further use.
        """
        buffer = self._buffer
        buffer += data
        messages: list[MessageT] = []
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            size = int.from_bytes(buffer[start : start + HEADER_BYTES], "big")
            if size > limits.ENGINE_MESSAGE_BYTES_MAX:
                raise FrameError(
                    f"a message of {size} bytes was announced; the limit is {limits.ENGINE_MESSAGE_BYTES_MAX}"
                )
            end = start + HEADER_BYTES + size
            if len(buffer) < end:
                break
            with memoryview(buffer) as whole, whole[start + HEADER_BYTES : end] as body:
                messages.append(self._decode(body))
            start = end
        if start:
            del buffer[:start]
        return messages

    def _decode(self, body: memoryview) -> MessageT:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise FrameError(f"not a message of this protocol: {error}") from error
