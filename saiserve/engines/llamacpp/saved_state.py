"""Memory for saved states: each mapped by itself, so that all of it goes back to the system when the state is dropped."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Final

SavedState = bytes | memoryview

MAPPED_MIN: Final = 256 * 1024
"""Smaller states lie in the heap: pages and mappings have their price too, and a system allows some 65,000 mappings."""
HUGE_MIN: Final = 4 * 1024 * 1024
"""From here on huge pages are asked for: filling small ones for the first time costs several times the copying."""
ADVICE: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)


def room_for(size: int) -> memoryview:
    """Zeroed writable memory of `size` bytes, freed with the last view of it."""
    if size >= MAPPED_MIN:
        with suppress(OSError):  # too many mappings: the heap has room where there is any
            return memoryview(_mapped(size))
    return memoryview(bytearray(size))


def _mapped(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_MIN and ADVICE is not None:
        with suppress(OSError):  # a kernel without them
            memory.madvise(ADVICE)
    return memory
