"""Blocks of saved prefixes go back to the system when they are freed."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from saiserve.engines.llamacpp.heap import MAPPED_BYTES, map_large_blocks

HOLES = """
import sys
from saiserve.engines.llamacpp.heap import MAPPED_BYTES, map_large_blocks
if sys.argv[1] == "mapped":
    assert map_large_blocks()
for size in range(1, 9):  # what is freed raises the threshold that glibc chooses by itself
    b"x" * (size * MAPPED_BYTES - 64)
blocks = [b"x" * (MAPPED_BYTES + 4096 * at) for at in range(16)]
with open("/proc/self/smaps") as maps:
    lines = maps.readlines()
resident = in_heap = 0
for line in lines:
    name, *rest = line.split()
    if "-" in name:
        in_heap = "[heap]" in line
    elif name == "Rss:" and in_heap:
        resident += int(rest[0])
print(resident // 1024)
"""


def _heap_mib(how: str) -> int:
    return int(subprocess.run([sys.executable, "-c", HOLES, how], check=True, capture_output=True, timeout=60).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the threshold is glibc's")
def test_saved_prefixes_do_not_lie_in_the_heap() -> None:
    blocks_mib = 16 * MAPPED_BYTES >> 20
    assert _heap_mib("as it is") >= blocks_mib
    assert _heap_mib("mapped") < blocks_mib // 2


def test_a_library_without_a_threshold_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _name: object())
    assert not map_large_blocks()
