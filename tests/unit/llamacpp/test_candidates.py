"""The narrow ways to find the best candidates give what a sort of the whole vocabulary gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from saiserve.engines.llamacpp import candidates
from saiserve.engines.llamacpp.candidates import Best, pick, pick_of_few, softmax, weights_of_few


@given(st.lists(st.sampled_from([-np.inf, -3.5, -0.0, 0.0, 1e-30, 2.0, 1e30]), min_size=1, max_size=50))
def test_ranks_are_the_same_for_short_and_long_lists(few: list[float]) -> None:
    values = np.array(few, np.float32) + np.float32(0)
    long = np.tile(values, 2 + candidates.PACKED_SORT_MIN // len(values))
    ids = np.arange(len(long))
    assert candidates._by_rank(ids, long).tolist() == np.argsort(-long, kind="stable").tolist()


@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.sampled_from([0.2, 2.0, 9.0])), min_size=1, max_size=6),
)
def test_the_best_are_the_same_whatever_was_asked_before(count: int, rows: list[tuple[int, float]]) -> None:
    best = Best(count)
    for noise, spread in rows:
        logits = np.random.default_rng(noise).normal(0, spread, 2_000).astype(np.float32).round(1)
        logits[::7] = -np.inf
        ids, values = best.find(logits, float(logits.max()))
        assert ids.tolist() == np.argsort(-logits, kind="stable")[:count].tolist()
        assert values.tolist() == logits[ids].tolist()


def test_fewer_are_given_when_fewer_are_finite() -> None:
    logits = np.full(100, -np.inf, np.float32)
    logits[[3, 50]] = 1.0, 2.0
    assert Best(40).find(logits, 2.0)[0].tolist()[:2] == [50, 3]


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
