"""Chance as a function: the same (seed, position, purpose) gives the same number on every node and in every batch."""

from __future__ import annotations

import hashlib
import struct

_PACK = struct.Struct("<QQB")
_UINT64 = struct.Struct("<Q")
_MASK = (1 << 64) - 1
BLOCK = 16
"""Chances made at a time."""


def uniform(seed: int, position: int, purpose: int = 0) -> float:
    """A number in [0, 1) with 53 random bits.

    Args:
        seed: any integer; taken modulo 2⁶⁴.
        position: place of the token in prompt + answer, ≥ 0.
        purpose: one number per independent draw at a position, 0..255.
    """
    digest = hashlib.blake2b(_PACK.pack(seed & _MASK, position, purpose), digest_size=8).digest()
    return float(_UINT64.unpack(digest)[0] >> 11) * 2.0**-53


class Chances:
    """`uniform` of one seed for positions that follow each other.

    Made ahead in blocks: between two steps everything but the model leaves the processor's caches, and fetching the hash
    anew for each token would take longer than computing with it.
    """

    def __init__(self, seed: int, purpose: int = 0) -> None:
        """Arguments as `uniform` takes them."""
        self._seed = seed
        self._purpose = purpose
        self._first = 0
        self._block: list[float] = []

    def at(self, position: int) -> float:
        """A number in [0, 1) for any position ≥ 0."""
        offset = position - self._first
        if not 0 <= offset < len(self._block):
            self._block = [uniform(self._seed, position + ahead, self._purpose) for ahead in range(BLOCK)]
            self._first, offset = position, 0
        return self._block[offset]
