"""Reuse on real, quantised weights: what is reused is counted, and where batches and cells are aligned the bits agree.

On such weights logits depend on a batch's shape and on where cells lie (decision 0055), so that the cold run has the
same shapes, and prefixes and places are multiples of `ALIGNED`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from saiserve.engines.llamacpp.binding import ContextSettings, LlamaContext
from saiserve.engines.llamacpp.job import Step
from saiserve.engines.llamacpp.kv import DecodeOutcome, Row
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.llamacpp.weights import LlamaModel
from tests.unit.llamacpp.reuse_harness import Harness, Run

pytestmark = pytest.mark.slow

ALIGNED = 256
"""llama.cpp looks at cells in steps of so many, and kernels sum in parts of them."""
CELLS = 4096
HOST_BYTES = 256 << 20
LOOSE = 3.5
"""Of logits that range over 24 and 29: what other batch shapes alone were seen to make of the same tokens is 2.8."""
TEXT = " ".join(
    f"In year {n} the {n % 17}th boat left harbour {n % 5} with {n * 7} barrels of oil." for n in range(400)
)


@dataclass
class Desk:
    """One model: a scheduler over one context, an empty context beside it, and a long text's tokens."""

    harness: Harness
    cold: LlamaContext
    text: tuple[int, ...]
    shapes: dict[str, list[int]]
    """Rows of each job's batches, in order."""

    @property
    def counters(self) -> dict[str, float]:
        return self.harness.scheduler.counters()

    def cold_logits(self, run: Run, source: Run | None) -> list[NDArray[np.float32]]:
        """The same tokens in an empty context: what was reused in whole batches, or in those of `source`."""
        tokens = [*run.job.tokens, *run.answer[:-1]]
        batch, own = self.cold.batch_max, self.shapes[run.job.id]
        reused = len(tokens) - sum(own)
        before = [batch] * -(-reused // batch) if source is None else self.shapes[source.job.id]
        sizes: list[int] = []
        while sum(sizes) < reused:
            sizes.append(min(before[len(sizes)], reused - sum(sizes)))
        sizes += own
        found, start = [], 0
        for size in sizes:
            rows = tuple(Row(0, at, tokens[at], at == start + size - 1) for at in range(start, start + size))
            assert self.cold.decode(rows) is DecodeOutcome.DONE
            found.append(self.cold.logits(size - 1).copy())
            start += size
        self.cold.remove(0, -1, -1)
        return found[-len(run.logits) :]

    def difference(self, run: Run, source: Run | None = None) -> float:
        pairs = zip(self.cold_logits(run, source), run.logits, strict=True)
        return max(float(np.abs(one - other).max()) for one, other in pairs)


@pytest.fixture
def hot_cells() -> int:
    """KV cells for idle prefixes."""
    return 2_048


@pytest.fixture(params=["smollm2_path", "gemma_path"])
def desk(request: pytest.FixtureRequest, hot_cells: int) -> Iterator[Desk]:
    """A desk as a node would set it up."""
    path: Path = request.getfixturevalue(request.param)
    model = LlamaModel(path)
    sizes = ContextSettings(cells=CELLS, sequences_max=16, batch_max=ALIGNED, threads=2)
    warm, cold = LlamaContext(model, sizes), LlamaContext(model, sizes)
    text = tuple(Vocabulary(model.vocab).tokenise_prompt(TEXT))
    shapes: dict[str, list[int]] = {}

    def note(step: Step) -> None:
        for part in step.parts:
            shapes.setdefault(part.job_id, []).append(part.end - part.start)

    harness = Harness(warm, host_bytes=HOST_BYTES, hot_cells_max=hot_cells, before=note)
    yield Desk(harness, cold, text, shapes)
    warm.close()
    cold.close()
    model.close()


def _filled(desk: Desk, base: tuple[int, ...], other: int) -> Run:
    """A run behind `base` that ends where the next cell is a multiple of `ALIGNED`."""
    own = desk.text[other : other + ALIGNED - 4]
    return desk.harness.run(base + own, draw=5, boundaries=(len(base),))


def test_a_branch_has_the_bits_of_a_cold_run(desk: Desk) -> None:
    base = desk.text[: 2 * ALIGNED]
    _filled(desk, base, 3_000)
    branch = desk.harness.run(base + desk.text[2_000 : 2_000 + ALIGNED], draw=8, boundaries=(len(base),))
    assert branch.cached_tokens == len(base)
    assert desk.counters["gate_refusals"] == 0
    assert desk.difference(branch) == 0


def test_a_wrong_token_far_back_is_seen_in_the_bits(desk: Desk) -> None:
    base = desk.text[: 2 * ALIGNED]
    _filled(desk, base, 3_000)
    branch = desk.harness.run(base + desk.text[2_000 : 2_000 + ALIGNED], draw=2, boundaries=(len(base),))
    tokens = list(branch.job.tokens)
    tokens[5] = desk.text[900]
    wrong = replace(branch, job=replace(branch.job, tokens=tuple(tokens)))
    assert desk.difference(wrong) > 0


def test_the_same_prompt_again_has_the_bits_of_one_computed_in_the_same_batches(desk: Desk) -> None:
    prompt = desk.text[: 2 * ALIGNED + 1]
    first = desk.harness.run(prompt, draw=6)
    again = desk.harness.run(prompt, draw=6)
    assert first.cached_tokens == 0
    assert again.cached_tokens == len(prompt) - 1
    assert desk.counters["gate_refusals"] == 0
    assert desk.difference(first) == 0
    assert desk.difference(again, source=first) == 0


@pytest.mark.parametrize("hot_cells", [0])
def test_a_conversation_back_from_host_memory_has_the_bits_it_had(desk: Desk) -> None:
    turn = desk.harness.run(desk.text[: 2 * ALIGNED - 3], draw=4)
    desk.harness.settle()
    assert desk.counters["moves_to_host"] > 0
    assert desk.counters["cells_idle"] == 0
    history = turn.job.tokens + tuple(turn.answer)
    back = desk.harness.run(history + desk.text[2_000 : 2_000 + ALIGNED - 1], draw=8, boundaries=(len(history),))
    assert desk.counters["moves_from_host"] > 0
    assert desk.counters["gate_refusals"] == 0
    assert back.cached_tokens == len(history) - 1
    assert desk.difference(back, source=turn) == 0


def test_a_running_answer_lends_its_prompt_with_all_its_bits(desk: Desk) -> None:
    base = desk.text[: 2 * ALIGNED]
    source = desk.harness.submit(base + desk.text[3_000 : 3_000 + ALIGNED - 4], draw=12, boundaries=(len(base),))
    while len(source.answer) < 5:
        desk.harness.step()
    behind = desk.harness.submit(base + desk.text[2_000 : 2_000 + ALIGNED], draw=4, boundaries=(len(base),))
    desk.harness.finish(source, behind)
    assert behind.cached_tokens == len(base)
    assert desk.counters["gate_refusals"] == 0
    # The first draw comes of a batch that has a decoding row beside the prompt's: other shapes, near but not equal.
    assert desk.difference(behind) < LOOSE


@pytest.mark.parametrize("drawn", [1, 7, 20])
def test_an_answer_resumed_at_a_token_computes_only_what_is_new(desk: Desk, drawn: int) -> None:
    prompt = desk.text[: ALIGNED + 40]
    whole = desk.harness.run(prompt, draw=24)
    desk.harness.settle()
    resumed = desk.harness.submit(prompt + tuple(whole.answer[:drawn]), draw=24 - drawn, resumed=drawn)
    desk.harness.finish(resumed)
    assert sum(desk.shapes[resumed.job.id]) == 1 + (24 - drawn - 1)
    assert desk.counters["gate_refusals"] == 0
    # Beside what the whole answer still holds its cells lie `24 - drawn` further back.
    assert desk.difference(resumed, source=whole) < LOOSE
