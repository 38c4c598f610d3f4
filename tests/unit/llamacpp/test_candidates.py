"""The narrow ways to find the best candidates give what a sort of the whole vocabulary gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saiserve.engines.llamacpp import candidates
from saiserve.engines.llamacpp.candidates import (
    COLUMNS,
    Floats,
    best,
    column_tops,
    pick,
    pick_of_few,
    softmax,
    weights_of_few,
)
from saiserve.engines.llamacpp.draws import uniform
from saiserve.engines.llamacpp.sampler import Sampler, SamplingError
from saiserve.engines.messages import Sampling


class AnyWords:
    """A vocabulary as far as the sampler looks at one here."""

    end_tokens: frozenset[int] = frozenset()

    def breaks(self, _strings: tuple[str, ...]) -> Any:
        return lambda _token: False


@given(st.lists(st.sampled_from([-np.inf, -3.5, -0.0, 0.0, 1e-30, 2.0, 1e30]), min_size=1, max_size=50))
def test_ranks_are_the_same_for_short_and_long_lists(few: list[float]) -> None:
    values = np.array(few, np.float32) + np.float32(0)
    long = np.tile(values, 2 + candidates.PACKED_SORT_MIN // len(values))
    ids = np.arange(len(long))
    assert candidates._by_rank(ids, long).tolist() == np.argsort(-long, kind="stable").tolist()


LARGEST = float(np.finfo(np.float32).max)
EDGES = np.array([-np.inf, -LARGEST, -1e30, -3.5, -1e-45, 0.0, 1e-45, 2.0, 2.0, 1e30, LARGEST], np.float32)


@st.composite
def many_logits(draw: st.DrawFn) -> Floats:
    """Vocabularies of any length around the columns', spread little or much, full of equals and edges or without."""
    size = draw(st.sampled_from([1, 2, 41, COLUMNS - 1, COLUMNS, COLUMNS + 1, 2 * COLUMNS + 7, 3_000, 49_152]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["rough", "smooth", "edges", "alike"]))
    if kind == "edges":
        logits = random.choice(EDGES, size)
    elif kind == "alike":
        logits = np.full(size, draw(st.sampled_from([-LARGEST, 0.0, LARGEST])), np.float32)
    else:
        logits = random.normal(0, draw(st.sampled_from([0.0, 0.3, 3.0, 3e4])), size).astype(np.float32)
        logits = logits.round(1) if kind == "rough" else logits
    logits[random.random(size) < draw(st.sampled_from([0.0, 0.1, 0.9, 0.999]))] = -np.inf
    logits[random.integers(size)] = draw(st.sampled_from([0.0, 30.0]))
    return logits + np.float32(0)  # long lists are ranked by their bits, where -0 is below 0


@given(many_logits(), st.sampled_from([1, 2, 20, 40, 64, 500, 2**63 - 1]) | st.integers(1, 200))
def test_the_best_are_those_of_a_sort_and_equals_come_by_id(logits: Floats, count: int) -> None:
    ranked = np.argsort(-logits, kind="stable")[:count]
    ranked = ranked[logits[ranked] > -np.inf]
    ids, values = best(logits, column_tops(logits, count), count)
    assert ids.tolist() == ranked.tolist()
    assert values.tolist() == logits[ranked].tolist()


@given(
    many_logits(),
    st.builds(
        Sampling,
        seed=st.integers(-(2**63), 2**63 - 1),
        temperature=st.sampled_from([1e-4, 0.2, 0.8, 1.0, 1.7, 1e6]),
        top_k=st.integers(2, candidates.FEW_MAX),
        top_p=st.sampled_from([1.0, 0.999, 0.95, 0.5, 1e-9]),
        min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    ),
    st.integers(0, 10_000),
)
def test_the_quick_draw_is_bit_for_bit_that_of_a_sort(logits: Floats, sampling: Sampling, position: int) -> None:
    ranked = np.argsort(-logits, kind="stable")[: sampling.top_k]
    ranked = ranked[logits[ranked] > -np.inf]
    weights = weights_of_few(logits[ranked].tolist(), sampling.top_p, sampling.min_p, sampling.temperature)
    expected = int(ranked[pick_of_few(weights, uniform(sampling.seed, position))])
    assert Sampler(sampling, AnyWords(), (), ()).draw(logits, position).token == expected  # type: ignore[arg-type]


@given(many_logits(), st.sampled_from([np.nan, np.inf]), st.integers(0, 2**32 - 1))
def test_the_quick_draw_sees_what_is_no_number_wherever_it_stands(logits: Floats, bad: float, place: int) -> None:
    logits[place % len(logits)] = bad
    with pytest.raises(SamplingError):
        Sampler(Sampling(seed=1, top_k=40), AnyWords(), (), ()).draw(logits, 0)  # type: ignore[arg-type]


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=candidates.FEW_MAX),
    st.floats(0.05, 0.999),
    st.floats(0.2, 2.0),
    st.floats(0, 0.999),
)
def test_a_few_are_weighed_and_drawn_as_many_are(
    some: list[float], top_p: float, temperature: float, chance: float
) -> None:
    values = np.array(sorted(some, reverse=True), np.float32)
    weights = weights_of_few(values.tolist(), top_p, 0.0, temperature)
    held = softmax(values).cumsum()
    assert held[len(weights) - 1] >= top_p - 1e-9
    assert len(weights) == 1 or held[len(weights) - 2] < top_p + 1e-9
    many = np.exp((values[: len(weights)] - values[0]).astype(np.float64) / temperature)
    assert np.allclose(weights, many)
    assert abs(pick_of_few(weights, chance) - pick(many, chance)) <= 1
