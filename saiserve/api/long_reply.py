"""JSON replies that may have many megabytes: made and sent piece by piece, so that nobody else waits for them.

Making one is the interpreter's own work, which a thread would not take off it: it is cut into slices instead, with a turn
of the event loop for the others between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import trio

from saiserve.api.http import Call, Reply, Send

SLICE_BYTES: Final = 64 * 1024
"""Made between two turns of the event loop: less than a millisecond's work even where it is all numbers."""
SLICE_ITEMS: Final = 1_024
"""Items of a long array encoded at a time."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class LongReply:
    """A whole JSON reply in pieces; an `http.Outcome`."""

    pieces: tuple[bytes, ...]

    async def send(self, call: Call, send: Send) -> None:
        """Send it all; `call` has a body, so it is no HEAD."""
        del call
        length = str(sum(map(len, self.pieces))).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in self.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def json_in_pieces(parts: Iterable[bytes]) -> Reply | LongReply:
    """Return the reply whose JSON `parts` make together; what they raise is raised before anything is sent."""
    pieces: list[bytes] = []
    piece = bytearray()
    for part in parts:
        piece += part
        if len(piece) >= SLICE_BYTES:
            pieces.append(bytes(piece))
            piece.clear()
            await trio.lowlevel.checkpoint()
    pieces.append(bytes(piece))
    return LongReply(tuple(pieces)) if len(pieces) > 1 else Reply(pieces[0])


def array_parts(runs: Iterable[list[Any]]) -> Iterator[bytes]:
    """Yield a JSON array of items that come a few at a time, `SLICE_ITEMS` at most and never none."""
    separator = b"["
    for run in runs:
        yield separator + _encode(run)[1:-1]
        separator = b","
    yield b"[]" if separator == b"[" else b"]"


def list_parts(items: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield a JSON array of items that come in parts themselves."""
    separator = b"["
    for item in items:
        yield separator
        yield from item
        separator = b","
    yield b"[]" if separator == b"[" else b"]"


def object_parts(
    *, first: dict[str, Any], name: str, value: Iterable[bytes], rest: dict[str, Any] | None = None
) -> Iterator[bytes]:
    """Yield a JSON object of which one value comes in parts: behind `first`, which is not empty, and before `rest`."""
    yield _encode(first)[:-1] + b',"%s":' % name.encode()
    yield from value
    yield b"," + _encode(rest)[1:] if rest else b"}"
