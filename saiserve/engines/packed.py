"""Ids and pieces of very many tokens in three runs of bytes.

Millions of small values in a message are that many objects, made in one go by whoever decodes it: an event loop would stand
still for half a second. Runs of bytes are copied, and read a few at a time.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from saiserve.engines.messages import Counted, PackedTokens

PACKED_FROM: Final = 4_096
"""Tokens from which they are packed; fewer are told one by one."""


def ids_bytes(ids: Iterable[int]) -> bytes:
    """Four bytes for each id, little-endian."""
    return _little(array("i", ids)).tobytes()


def pack(ids: Iterable[int], pieces: Sequence[bytes]) -> PackedTokens:
    """Pack as many ids as pieces."""
    return PackedTokens(ids_bytes(ids), b"".join(pieces), _little(array("I", map(len, pieces))).tobytes())


def ids_of(counted: Counted) -> Sequence[int] | None:
    """All ids of a count; None when they are not known."""
    if counted.packed is None:
        return counted.ids
    ids = array("i")
    ids.frombytes(counted.packed.ids)
    return _little(ids)


def spelled(counted: Counted) -> bytes:
    """All pieces of a count in one."""
    return b"".join(counted.pieces or ()) if counted.packed is None else counted.packed.data


def runs_of(counted: Counted, size: int) -> Iterator[tuple[Sequence[int], Sequence[bytes]]]:
    """Yield ids with as many pieces, at most `size` at a time."""
    ids, pieces, packed = ids_of(counted) or (), counted.pieces or (), counted.packed
    if packed is None:
        yield from ((ids[at : at + size], pieces[at : at + size]) for at in range(0, len(ids), size))
        return
    sizes = array("I")
    sizes.frombytes(packed.sizes)
    _little(sizes)
    end = 0
    for at in range(0, len(ids), size):
        run = []
        for length in sizes[at : at + size]:
            run.append(packed.data[end : end + length])
            end += length
        yield ids[at : at + size], run


def _little(numbers: array[int]) -> array[int]:
    """The same, turned where the machine is the other way round."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
