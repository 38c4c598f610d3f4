"""Our count of cells is llama.cpp's own, read from what it logs when LLAMA_KV_CACHE_DEBUG is set."""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Callable, Iterator

import llama_cpp
import pytest

from saiserve.engines.llamacpp import native
from saiserve.engines.llamacpp.binding import LlamaContext
from saiserve.engines.llamacpp.job import Step
from tests.unit.llamacpp.reuse_harness import Harness, Run

USED = re.compile(r"find_slot: stream\[0\], n = +\d+, used = +(\d+), head = +\d+, size = +\d+, n_swa = +(\d+)")
DEBUG_LEVEL = 1
NORMAL_TOKENS = 260


class Log:
    """Cells in use before each batch as llama.cpp tells, by window (0: full attention)."""

    def __init__(self) -> None:
        self.used: dict[int, int] = {}

    def hear(self, level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
        found = USED.search(text.decode("utf-8", "replace")) if level == DEBUG_LEVEL else None
        if found is not None:  # a batch may look for a place more than once: the first time says how it was before
            self.used.setdefault(int(found[2]), int(found[1]))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    monkeypatch.setenv("LLAMA_KV_CACHE_DEBUG", "1")
    native.start()
    log = Log()
    callback = llama_cpp.llama_log_callback(log.hear)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    yield log
    llama_cpp.llama_log_set(native.on_log, ctypes.c_void_p(0))


@pytest.mark.parametrize("park_after_s", [None, 0.03])
@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2"])
def test_every_batch_finds_as_many_cells_in_use_as_we_count(
    name: str, park_after_s: float | None, open_context: Callable[..., LlamaContext], log: Log
) -> None:
    context = open_context(name, cells=1024)
    counted: list[int] = []
    told: list[dict[int, int]] = []

    def before(_step: Step) -> None:
        told.append(dict(log.used))
        log.used.clear()
        counted.append(harness.scheduler.load().cells_used)

    harness = Harness(context, hot_cells_max=300, host_bytes=1 << 20, lanes=3, before=before, park_after_s=park_after_s)
    _live(harness, random.Random(4), rounds=400)
    before(Step((), (), ()))
    assert len(counted) > 200
    assert max(counted) > 300
    # What was told about the batch before the one being looked at belongs to the count taken then.
    for count, used in zip(counted, told[1:], strict=False):
        assert used, "llama.cpp says nothing"
        assert used[0] == count


def _live(harness: Harness, chance: random.Random, rounds: int) -> None:
    """Prompts that share beginnings come, some are given up; the cache is filled, moved and emptied."""
    bases = [tuple(chance.randrange(NORMAL_TOKENS) for _ in range(chance.randrange(20, 200))) for _ in range(4)]
    going: list[Run] = []
    for _ in range(rounds):
        going = [run for run in going if not run.is_over]
        if len(going) < 5 and chance.random() < 0.3:
            base = chance.choice(bases)
            own = tuple(chance.randrange(NORMAL_TOKENS) for _ in range(chance.randrange(1, 60)))
            prompt = base[: chance.randrange(1, len(base) + 1)] + own
            going.append(harness.submit(prompt, draw=chance.randrange(1, 12), boundaries=(len(prompt) - len(own),)))
        if going and chance.random() < 0.05:
            given_up = going.pop(chance.randrange(len(going)))
            harness.scheduler.cancel(harness.now, given_up.job.id)
        harness.step()
    harness.finish(*going)
