"""Blocks of saved prefixes go back to the system when they are freed; arrays of a step of sampling stay."""

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

STEPS = 50
FAULTS = f"""
import resource
from saiserve.engines.llamacpp.heap import map_large_blocks

def step():
    first = b"x" * (2 << 20)  # 262k logits in double precision
    second = b"y" * (2 << 20)

assert map_large_blocks()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({STEPS}):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

glibc_only = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the thresholds are glibc's")


def _told(script: str, *arguments: str) -> int:
    told = subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True, timeout=60)
    return int(told.stdout)


@glibc_only
def test_arrays_of_a_step_are_not_faulted_in_again_for_each_token() -> None:
    assert _told(FAULTS) < STEPS, "one step alone has a thousand pages"


@glibc_only
def test_saved_prefixes_do_not_lie_in_the_heap() -> None:
    blocks_mib = 16 * MAPPED_BYTES >> 20
    assert _told(HOLES, "as it is") >= blocks_mib
    assert _told(HOLES, "mapped") < blocks_mib // 2


def test_a_library_without_a_threshold_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _name: object())
    assert not map_large_blocks()
