"""The sampler draws what a plain, slow computation over the whole vocabulary draws; greedy, seeds, penalties."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from saiserve.engines.llamacpp.candidates import REACHES
from saiserve.engines.llamacpp.draws import BLOCK, Chances, uniform
from saiserve.engines.llamacpp.penalties import Penalties, repeated_continuations
from saiserve.engines.llamacpp.sampler import DRAW_TOKEN, DRAW_XTC, Sampler, SamplingError
from saiserve.engines.llamacpp.sampling_bounds import RANGES, sampling_fault, settled
from saiserve.engines.messages import Sampling

END = 0


class Words:
    """A vocabulary of numbered words, as far as the sampler looks at one."""

    end_tokens = frozenset({END})

    def breaks(self, _strings: tuple[str, ...]) -> Any:
        return lambda token: token == 1

    def spelling(self, token: int) -> bytes:
        return b"%d" % token


def sampler(sampling: Sampling, prompt: tuple[int, ...] = (), answer: tuple[int, ...] = ()) -> Sampler:
    return Sampler(sampling, Words(), prompt, answer)  # type: ignore[arg-type]


def softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def slow_draw(logits: NDArray[np.float32], s: Sampling, position: int) -> int:
    """llama.cpp's stages over every token, in double precision."""
    values = logits.astype(np.float64)
    ids = np.argsort(-values, kind="stable")
    ids = ids[np.isfinite(values[ids])]
    if s.top_k > 0:
        ids = ids[: s.top_k]
    if s.typical_p < 1:
        shares = softmax(values[ids])
        surprise = -np.log(np.maximum(shares, 1e-300))
        order = np.argsort(np.abs(surprise - (shares * surprise).sum()), kind="stable")
        kept = order[: int(np.searchsorted(shares[order].cumsum(), s.typical_p)) + 1]
        ids = ids[np.sort(kept)]
    if s.top_p < 1:
        ids = ids[: int(np.searchsorted(softmax(values[ids]).cumsum(), s.top_p)) + 1]
    if s.min_p > 0:
        ids = ids[values[ids] >= values[ids[0]] + math.log(s.min_p)]
    if s.xtc_probability > 0 and uniform(s.seed, position, DRAW_XTC) < s.xtc_probability:
        ids = ids[max(0, int((softmax(values[ids]) >= s.xtc_threshold).sum()) - 1) :]
    chance = uniform(s.seed, position, DRAW_TOKEN)
    plain = s.top_k == 0 and s.typical_p == 1 and s.top_p == 1 and s.min_p == 0 and s.xtc_probability == 0
    if plain:  # near candidates by id, then the rest by id: an order is free, but must be the same one
        near = values[ids] > values[ids[0]] - REACHES[0] * s.temperature
        ids = np.concatenate([np.sort(ids[near]), np.sort(ids[~near])])
    cumulative = softmax(values[ids] / s.temperature).cumsum()
    return int(ids[min(int(np.searchsorted(cumulative, chance * cumulative[-1], side="right")), len(ids) - 1)])


settings_strategy = st.builds(
    Sampling,
    seed=st.integers(0, 2**63),
    temperature=st.sampled_from([0.2, 0.8, 1.0, 1.7]),
    top_k=st.sampled_from([0, 0, 2, 40, 500]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    typical_p=st.sampled_from([1.0, 1.0, 0.7]),
    xtc_probability=st.sampled_from([0.0, 0.0, 0.5]),
)


@given(settings_strategy, st.integers(0, 2**32 - 1), st.sampled_from([0.3, 3.0, 12.0]), st.integers(0, 10_000))
def test_thresholds_change_no_draw(s: Sampling, noise: int, spread: float, position: int) -> None:
    logits = np.random.default_rng(noise).normal(0, spread, 3000).astype(np.float32)
    expected = slow_draw(logits, s, position)
    drawn = sampler(s).draw(logits.copy(), position).token
    if drawn != expected:  # single precision may move an edge by one neighbour, never further
        by_rank = np.argsort(-logits, kind="stable").tolist()
        by_id = sorted(by_rank, key=lambda token: (logits[token] <= logits.max() - REACHES[0] * s.temperature, token))
        assert any(abs(order.index(drawn) - order.index(expected)) == 1 for order in (by_rank, by_id))


def far_out(*usual: float) -> st.SearchStrategy[float]:
    """Usual values, and whatever a finite number can be: subnormal, huge, negative."""
    edges = [0.0, 5e-324, 1e-310, 1e-46, 1e-38, 1e-9, 1e9, 1e38, 1e39, 1.7e308]
    return st.sampled_from([*usual, *edges, *(-edge for edge in edges)]) | st.floats(
        allow_nan=False, allow_infinity=False
    )


WHOLE = st.integers(-(2**63), 2**63 - 1)

extreme_settings = st.builds(
    Sampling,
    seed=WHOLE,
    temperature=far_out(0.8, 1.0),
    top_k=st.sampled_from([0, 0, 1, 2, 40, 100, 2**63 - 1, -5]),
    top_p=far_out(1.0, 1.0, 0.9),
    min_p=far_out(0.0, 0.0, 1.0),
    typical_p=far_out(1.0, 1.0, 0.5),
    repeat_penalty=far_out(1.0, 1.0).map(lambda value: abs(value) or 1.0),
    repeat_last_n=st.sampled_from([0, -1, 64, -(2**63), 2**63 - 1]),
    frequency_penalty=far_out(0.0, 0.0),
    presence_penalty=far_out(0.0, 0.0),
    logit_bias=st.lists(st.tuples(st.integers(0, 299), st.floats(-100, 100)), max_size=5).map(tuple),
    logprobs=st.sampled_from([None, None, 0, 20]),
    dry_multiplier=far_out(0.0, 0.0),
    dry_base=far_out(1.75),
    dry_allowed_length=st.sampled_from([2, 0]) | WHOLE,
    dry_penalty_last_n=st.sampled_from([0, -1, 64, -(2**63), 2**63 - 1]),
    xtc_probability=far_out(0.0, 0.5),
    xtc_threshold=far_out(0.1),
    mirostat=st.sampled_from([0, 0, 1, 2]),
    mirostat_tau=far_out(5.0),
    mirostat_eta=far_out(0.1),
    after_stages=st.booleans(),
)


@given(extreme_settings, st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 12.0, 3e4]), st.booleans())
def test_no_finite_setting_ends_in_anything_but_a_token(s: Sampling, noise: int, spread: float, masked: bool) -> None:
    assert sampling_fault(s, 300) is None
    random = np.random.default_rng(noise)
    mask = random.random(300) < 0.9 if masked else None
    if mask is not None:
        mask[int(random.integers(300))] = False
    one = sampler(s, (7, 8, 7, 8, 7), (3, 4))
    for position in range(8):
        logits = random.normal(0, spread, 300).astype(np.float32)
        drawn = one.draw(logits, position, mask)
        assert 0 <= drawn.token < 300
        assert mask is None or not mask[drawn.token]
        if drawn.logprob is not None:
            assert drawn.logprob.logprob <= 1e-3
            assert all(math.isfinite(value) for _, _, value in drawn.logprob.top)
        one.accept(drawn.token)


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-46, 1e-38, 1e-5])
@pytest.mark.parametrize("stages", [{}, {"top_k": 40}, {"top_p": 0.9}, {"mirostat": 1}])
def test_the_smallest_temperatures_are_greedy(temperature: float, stages: dict[str, Any]) -> None:
    logits = np.random.default_rng(5).normal(0, 3, 1000).astype(np.float32)
    drawn = sampler(Sampling(seed=1, temperature=temperature, **stages)).draw(logits.copy(), 0)
    assert drawn.token == int(logits.argmax())


@given(extreme_settings)
def test_settled_values_are_in_range_and_usual_ones_are_untouched(s: Sampling) -> None:
    for name, (least, most) in RANGES.items():
        assert least <= getattr(settled(s), name) <= most
    assert settled(settled(s)) == settled(s)
    assert settled(Sampling(seed=1)) == Sampling(seed=1)


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    s = Sampling(seed=9, temperature=1.0)
    drawn = Counter(sampler(s).draw(logits.copy(), position).token for position in range(4000))
    for token, share in enumerate((0.5, 0.25, 0.15, 0.1)):
        assert abs(drawn[token] / 4000 - share) < 0.03


def test_far_tokens_are_drawn_as_often_as_they_should_be() -> None:
    logits = np.full(50_000, -11.0, np.float32)
    logits[7] = 0.0
    tail = 49_999 * math.exp(-11)
    s = Sampling(seed=4, temperature=1.0)
    rare = sum(sampler(s).draw(logits.copy(), position).token != 7 for position in range(300))
    assert abs(rare / 300 - tail / (1 + tail)) < 0.1


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    assert uniform(1, 5) == uniform(1, 5)
    assert len({uniform(seed, position, use) for seed in range(8) for position in range(8) for use in (0, 1)}) == 128
    assert uniform(-1, 0) == uniform(2**64 - 1, 0)


def test_chances_made_ahead_are_those_of_their_positions_in_any_order() -> None:
    chances = Chances(7, 1)
    for position in [*range(2 * BLOCK + 1), 3, 2, 1000, 1001, 0]:
        assert chances.at(position) == uniform(7, position, 1)
    assert all(0 <= uniform(3, position) < 1 for position in range(1000))


@pytest.mark.parametrize("sampling", [Sampling(seed=1, temperature=0), Sampling(seed=1, temperature=2, top_k=1)])
def test_greedy_is_the_best_token_and_ties_go_to_the_lower_id(sampling: Sampling) -> None:
    logits = np.array([1, 5, 5, 2], np.float32)
    assert sampler(sampling).draw(logits, 0).token == 1


def test_a_mask_and_a_ban_are_obeyed_by_every_kind_of_draw() -> None:
    logits = np.array([9, 8, 1, 1], np.float32)
    mask = np.array([False, True, False, True])
    for options in (
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"top_k": 3},
        {"top_p": 0.5},
        {"mirostat": 1},
        {"mirostat": 2},
    ):
        s = Sampling(**{"seed": 1, "ignore_eos": True, **options})  # type: ignore[arg-type]
        assert {sampler(s).draw(logits.copy(), position, mask).token for position in range(30)} == {2}


@pytest.mark.parametrize("bad", [np.full(4, np.nan), np.full(4, -np.inf), np.array([1, np.nan, 2, 3])])
def test_a_model_that_computes_nonsense_is_an_error(bad: NDArray[np.float64]) -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(SamplingError):
            sampler(Sampling(seed=1, temperature=temperature)).draw(bad.astype(np.float32), 0)


def test_repetition_looks_at_the_last_tokens_of_prompt_and_answer() -> None:
    s = Sampling(seed=1, repeat_penalty=2.0, repeat_last_n=3)
    logits = np.array([4, 4, 4, -4, 4], np.float32)
    Penalties(s, (0, 1), (2, 3), lambda _token: False).apply(logits)
    assert logits.tolist() == [4, 2, 2, -8, 4]


def test_frequency_and_presence_count_the_answer_alone() -> None:
    s = Sampling(seed=1, frequency_penalty=0.5, presence_penalty=1.0)
    penalties = Penalties(s, (0, 0, 0), (1,), lambda _token: False)
    penalties.accept(1)
    penalties.accept(2)
    logits = np.zeros(4, np.float32)
    penalties.apply(logits)
    assert logits.tolist() == [0, -2.0, -1.5, 0]


def test_dry_punishes_the_token_that_would_go_on_repeating() -> None:
    s = Sampling(seed=1, dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=2)
    logits = np.zeros(20, np.float32)
    Penalties(s, (5, 6, 7, 8, 9, 5, 6, 7), (), lambda token: token == 1).apply(logits)
    assert logits[8] == -2.0
    assert np.count_nonzero(logits) == 1


def test_dry_does_not_look_past_a_breaker() -> None:
    s = Sampling(seed=1, dry_multiplier=1.0, dry_base=2.0, dry_allowed_length=2)
    logits = np.zeros(20, np.float32)
    Penalties(s, (6, 1, 7, 8, 9, 6, 1, 7), (), lambda token: token == 1).apply(logits)
    assert not logits.any()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_repeated_continuations_are_the_longest_ones(tokens: list[int]) -> None:
    expected: dict[int, int] = {}
    for end in range(1, len(tokens)):
        length = 0
        while length < end and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length:
            expected[tokens[end]] = max(expected.get(tokens[end], 0), length)
    assert repeated_continuations(np.array(tokens[::-1]), len(tokens)) == expected


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_holds_the_surprise_near_its_goal(version: int) -> None:
    random = np.random.default_rng(1)
    s = Sampling(seed=2, mirostat=version, mirostat_tau=3.0, mirostat_eta=0.2)
    one, surprises = sampler(s), []
    base = -1.1 * np.log(np.arange(1, 2001))
    for position in range(400):
        logits = (base + random.normal(0, 0.3, 2000)).astype(np.float32)
        token = one.draw(logits.copy(), position).token
        surprises.append(-math.log2(softmax(logits.astype(np.float64))[token]))
    assert abs(float(np.mean(surprises[100:])) - 3.0) < 0.8


@pytest.mark.parametrize(
    ("stages", "most"),
    [({"top_k": 3}, 3), ({"mirostat": 2, "mirostat_tau": 2.0}, 5), ({}, 5), ({"temperature": 0.0}, 1)],
)
def test_log_probabilities_after_all_stages_are_those_the_token_was_drawn_by(stages: dict[str, Any], most: int) -> None:
    logits = np.linspace(-2.0, 2.0, 40, dtype=np.float32)
    settings = {"temperature": 0.7, **stages}
    drawn = sampler(Sampling(seed=3, logprobs=5, after_stages=True, **settings)).draw(logits.copy(), 9)
    assert drawn.logprob is not None
    shares = {token: math.exp(logprob) for token, _, logprob in drawn.logprob.top}
    assert len(shares) <= most
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    if settings["temperature"] == 0.0 or "top_k" in stages:
        assert sum(shares.values()) == pytest.approx(1.0)
        assert math.exp(drawn.logprob.logprob) == pytest.approx(shares[drawn.token])
    if not stages:
        expected = softmax(logits.astype(np.float64) / 0.7)
        assert shares == pytest.approx({token: expected[token] for token in shares}, rel=1e-4)
