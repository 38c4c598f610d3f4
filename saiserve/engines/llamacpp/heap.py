"""Where the C library has its memory from, and that it gives back what large blocks held: messages, prompts."""

from __future__ import annotations

import ctypes

MAPPED_BYTES = 4 << 20
"""Blocks of at least so many bytes are mapped by themselves. More than any array of a step of sampling: mapping those
anew for each token would cost more than they compute."""
KEPT_BYTES = 2 * MAPPED_BYTES
"""Free memory at the heap's end that is kept: what glibc itself would keep beside that threshold, and several arrays of
a step of sampling."""
HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
"""Asks the kernel for huge pages; glibc reads it when a process starts, others never. See decision 0166."""
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""mallopt(3)."""


def map_large_blocks() -> bool:
    """Fix glibc's thresholds; False where the C library has none.

    By itself the one for mapping grows up to 32 MiB with what was freed. Blocks of megabytes, all of different sizes,
    then lie in the heap and leave holes there. The one for giving back the heap's end follows it only while neither is
    fixed, and would stay at 128 KiB: arrays of megabytes would be given back after each token and faulted in, page by
    page, for the next.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    return bool(mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
