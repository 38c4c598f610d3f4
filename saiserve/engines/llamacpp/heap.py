"""Has the C library give back what large blocks held, so that saved prefixes leave no holes in the heap."""

from __future__ import annotations

import ctypes

MAPPED_BYTES = 4 << 20
"""Blocks of at least so many bytes are mapped by themselves. More than any array of a step of sampling: mapping those
anew for each token would cost more than they compute."""
M_MMAP_THRESHOLD = -3
"""mallopt(3)."""


def map_large_blocks() -> bool:
    """Fix glibc's threshold; False where the C library has none.

    By itself it grows up to 32 MiB with what was freed. Saved prefixes, megabytes each and all of different sizes, then
    lie in the heap, and a store of constant size holds more and more memory.
    """
    library = ctypes.CDLL(None)
    return bool(getattr(library, "mallopt", lambda *_: 0)(M_MMAP_THRESHOLD, MAPPED_BYTES))
