"""Chance as a function: the same (seed, position, purpose) gives the same number on every node and in every batch."""

from __future__ import annotations

import hashlib
import struct

_PACK = struct.Struct("<QQB")
_UINT64 = struct.Struct("<Q")
_MASK = (1 << 64) - 1


def uniform(seed: int, position: int, purpose: int = 0) -> float:
    """A number in [0, 1) with 53 random bits.

    Args:
        seed: any integer; taken modulo 2⁶⁴.
        position: place of the token in prompt + answer, ≥ 0.
        purpose: one number per independent draw at a position, 0..255.
    """
    digest = hashlib.blake2b(_PACK.pack(seed & _MASK, position, purpose), digest_size=8).digest()
    return float(_UINT64.unpack(digest)[0] >> 11) * 2.0**-53
