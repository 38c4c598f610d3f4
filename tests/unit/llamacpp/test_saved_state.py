"""Memory of saved states goes back to the system when they are dropped, whatever lies beside them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from saiserve.engines.llamacpp import saved_state
from saiserve.engines.llamacpp.saved_state import HUGE_MIN, MAPPED_MIN, room_for

GROWTH = """
import random, sys
from saiserve.engines.llamacpp.saved_state import HUGE_MIN, MAPPED_MIN, room_for

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) // 256

draw = random.Random(1)
before, kept, held = resident(), [], []
for _ in range(2_000):  # states come and go, and small things that stay are made between
    state = room_for(draw.randrange(MAPPED_MIN, 2 * HUGE_MIN))
    state[::4096] = bytes(len(range(0, len(state), 4096)))
    held.append(state)
    kept.append(bytes(2_000))
    if len(held) > 40:
        del held[draw.randrange(len(held))]
del state
held.clear()
print(resident() - before)
"""


def test_what_states_held_goes_back_whole() -> None:
    ran = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, timeout=60, check=True)
    assert int(ran.stdout) < 12, "2,000 small things of 2,000 bytes stay, and nothing of 8 GB of states"


@pytest.mark.parametrize("size", [1, MAPPED_MIN - 1, MAPPED_MIN, HUGE_MIN + 5])
def test_room_is_writable_and_as_large_as_asked_for(size: int) -> None:
    room = room_for(size)
    assert len(room) == size
    room[-1] = 7
    assert room[-1] == 7


def test_where_no_more_can_be_mapped_the_heap_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_named: object) -> None:
        raise OSError("cannot allocate memory")

    monkeypatch.setattr(saved_state.mmap, "mmap", refuse)
    assert len(room_for(MAPPED_MIN)) == MAPPED_MIN
