"""What an image file says of its size, read before any decoder sees it: decoders believe headers. Pure.

Sources: PNG (ISO 15948 §11.2), GIF89a §18, JPEG (ITU-T T.81 §B.2.2).
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib

IMAGE_BYTES_MAX = 20 * 1024 * 1024
IMAGE_PIXELS_MAX = 36_000_000
"""Decoded it is three bytes each."""
PIXEL_BYTES_MAX, ROW_BYTES_MAX = 8, 16
"""Of a PNG before its filters are undone: four samples of 16 bits; a filter byte for each of seven interlaced passes."""
INFLATE_BYTES = 1 << 20
"""Inflated at a time."""
PNG_MAGIC, JPEG_MAGIC, GIF_MAGICS = b"\x89PNG\r\n\x1a\n", b"\xff\xd8", (b"GIF87a", b"GIF89a")
JPEG_STARTS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers that begin a frame and hold its size."""
JPEG_BARE = frozenset({0x01, *range(0xD0, 0xDA)})
"""Markers without a length."""


class ImageError(ValueError):
    """The image cannot be used; the message is for the client."""


def image_bytes(url: str) -> bytes:
    """The bytes behind a base64 `data:` URI (RFC 2397). Nothing is fetched from anywhere.

    Raises:
        ImageError: any other address, or not base64.
    """
    header, comma, payload = url.partition(",")
    if not header.startswith("data:") or not header.endswith(";base64") or not comma:
        raise ImageError("images are taken as base64 data: URIs only")
    if len(payload) > IMAGE_BYTES_MAX * 4 // 3 + 4:
        raise ImageError(f"an image may have {IMAGE_BYTES_MAX} bytes")
    try:
        return base64.b64decode(payload, validate=True)
    except binascii.Error as error:
        raise ImageError("an image is not valid base64") from error


def check_image(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG, JPEG or GIF.

    Raises:
        ImageError: another kind of file, cut short, or too large.
    """
    if len(data) > IMAGE_BYTES_MAX:
        raise ImageError(f"an image of {len(data)} bytes; {IMAGE_BYTES_MAX} are allowed")
    try:
        width, height = _size(data)
    except (struct.error, IndexError) as error:
        raise ImageError("an image is cut short") from error
    if not width or not height:
        raise ImageError("an image without any pixels")
    if width * height > IMAGE_PIXELS_MAX:
        raise ImageError(f"an image of {width} by {height} pixels; {IMAGE_PIXELS_MAX} in all are allowed")
    if data.startswith(PNG_MAGIC):
        _check_inflated(data, width * height * PIXEL_BYTES_MAX + height * ROW_BYTES_MAX)
    return width, height


def _check_inflated(data: bytes, most: int) -> None:
    """A decoder inflates all that a PNG holds, whatever its header says; refuse one that holds more."""
    inflate, total, at = zlib.decompressobj(), 0, len(PNG_MAGIC)
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        piece = data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        while piece:
            try:
                total += len(inflate.decompress(piece, INFLATE_BYTES))
            except zlib.error as error:
                raise ImageError("an image is damaged: it cannot be decoded") from error
            if total > most:
                raise ImageError("an image holds more than its width and height say")
            piece = inflate.unconsumed_tail
        at += 12 + length


def _size(data: bytes) -> tuple[int, int]:
    if data.startswith(PNG_MAGIC):
        width, height = struct.unpack_from(">II", data, 16)
        return width, height
    if data.startswith(GIF_MAGICS):
        width, height = struct.unpack_from("<HH", data, 6)
        return width, height
    if data.startswith(JPEG_MAGIC):
        return _jpeg_size(data)
    raise ImageError("an image is neither PNG, JPEG nor GIF")


def _jpeg_size(data: bytes) -> tuple[int, int]:
    at = 2
    while True:
        if data[at] != 0xFF:
            raise ImageError("a JPEG's segments do not follow each other")
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif marker in JPEG_BARE:
            at += 2
        elif marker in JPEG_STARTS:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]
