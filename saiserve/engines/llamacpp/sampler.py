"""Draws the next token from logits: a function of the logits, the answer so far and (seed, position).

Stages in llama.cpp's default order: bias, penalties, DRY, top-k, typical, top-p, min-p, XTC, temperature, draw. What
they choose from is found in candidates.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from saiserve.engines.llamacpp.candidates import (
    FEW_MAX,
    SHARE_MIN,
    Floats,
    Ids,
    best,
    column_tops,
    count_at_least,
    draw_from_all,
    mirostat_count,
    nucleus,
    pick,
    pick_of_few,
    softmax,
    typical,
    weights_of_few,
    within,
    xtc_dropped,
)
from saiserve.engines.llamacpp.draws import Chances, uniform
from saiserve.engines.llamacpp.penalties import Penalties
from saiserve.engines.llamacpp.sampling_bounds import settled
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.messages import Sampling, TokenLogprob

DRAW_TOKEN, DRAW_XTC = 0, 1


class SamplingError(Exception):
    """The model gave no token that can be drawn: NaN, or nothing allowed."""


class NotANumberError(SamplingError):
    """NaN: of this request's own doing, or because what is in the KV cache is none."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token, with its logprobs when they were asked for."""

    token: int
    logprob: TokenLogprob | None = None


class Sampler:
    """The sampling state of one answer."""

    def __init__(
        self, sampling: Sampling, vocabulary: Vocabulary, prompt: tuple[int, ...], answer: tuple[int, ...]
    ) -> None:
        self._sampling = sampling = settled(sampling)
        self._vocabulary = vocabulary
        self._penalties = Penalties(sampling, prompt, answer, vocabulary.breaks(sampling.dry_sequence_breakers))
        bias = dict(sampling.logit_bias)
        self._bias_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._banned = sorted(vocabulary.end_tokens) if sampling.ignore_eos else []
        self._chances = Chances(sampling.seed, DRAW_TOKEN)
        self._mu = 2.0 * sampling.mirostat_tau
        self._left: tuple[Ids, Sequence[float] | NDArray[np.float64]] | None = None
        """What the stages left to draw from last time, best first, with weights; None = the whole vocabulary."""
        self._is_few = (
            0 < sampling.top_k <= FEW_MAX
            and sampling.typical_p >= 1
            and sampling.xtc_probability <= 0
            and not sampling.mirostat
        )
        self.is_greedy = sampling.temperature <= 0 or sampling.top_k == 1

    def accept(self, token: int) -> None:
        """A token joined the answer."""
        self._penalties.accept(token)

    def draw(self, logits: Floats, position: int, mask: NDArray[np.bool_] | None = None) -> Drawn:
        """The next token. `logits` are changed in place.

        Args:
            logits: one row, the vocabulary long.
            position: place of the new token in prompt + answer.
            mask: True where a token is forbidden.
        Raises:
            SamplingError: no finite logit is left.
        """
        sampling = self._sampling
        raw = logits.copy() if sampling.logprobs is not None and not sampling.after_stages else None
        self._adjust(logits)
        if mask is not None:
            np.copyto(logits, -np.inf, where=mask)
        token = _best_of(logits) if self.is_greedy else self._draw(logits, position)
        if sampling.logprobs is None:
            return Drawn(token)
        return Drawn(token, self._drawn_by(logits, token) if raw is None else self._logprob(raw, token))

    def best(self, adjusted: Floats, mask: NDArray[np.bool_]) -> int:
        """The best allowed token of logits that `draw` has already adjusted."""
        np.copyto(adjusted, -np.inf, where=mask)
        return _best_of(adjusted)

    def _adjust(self, logits: Floats) -> None:
        if len(self._bias_ids):
            logits[self._bias_ids] += self._bias
        for token in self._banned:
            logits[token] = -math.inf
        if self._penalties.active:
            self._penalties.apply(logits)

    def _draw(self, logits: Floats, position: int) -> int:
        sampling = self._sampling
        chance = self._chances.at(position)
        if self._is_few:
            return self._draw_of_few(logits, chance)
        peak = _checked(float(logits.max()))
        if sampling.mirostat:
            return self._mirostat(logits, peak, chance)
        narrows = sampling.top_k > 0 or sampling.typical_p < 1 or sampling.top_p < 1 or sampling.min_p > 0
        if not narrows and sampling.xtc_probability <= 0:
            self._left = None
            return draw_from_all(logits, peak, sampling.temperature, chance)
        ids, values = self._candidates(logits, peak)
        if sampling.min_p > 0:
            values = values[: count_at_least(values, values[0] + math.log(sampling.min_p))]
        if sampling.xtc_probability > 0 and uniform(sampling.seed, position, DRAW_XTC) < sampling.xtc_probability:
            start = xtc_dropped(values, sampling.xtc_threshold)
            ids, values = ids[start:], values[start:]
        weights = np.exp((values - values[0]).astype(np.float64) / sampling.temperature)
        self._left = ids, weights
        return int(ids[pick(weights, chance)])

    def _draw_of_few(self, logits: Floats, chance: float) -> int:
        """The same for what is usual, a short top-k: the one way whose every microsecond counts."""
        sampling = self._sampling
        tops = column_tops(logits, sampling.top_k)
        _checked(float(tops.max()))
        ids, values = best(logits, tops, sampling.top_k)
        few = weights_of_few(values.tolist(), sampling.top_p, sampling.min_p, sampling.temperature)
        self._left = ids[: len(few)], few
        return int(ids[pick_of_few(few, chance)])

    def _candidates(self, logits: Floats, peak: float) -> tuple[Ids, Floats]:
        """What top-k, typical and top-p leave, best first."""
        sampling = self._sampling
        if sampling.top_k > 0:
            ids, values = best(logits, column_tops(logits, sampling.top_k), sampling.top_k)
        elif sampling.typical_p < 1:
            ids, values = within(logits, peak, math.inf)
        elif sampling.top_p < 1:
            return nucleus(logits, peak, sampling.top_p)
        else:
            return within(logits, peak, 1e-3 - math.log(sampling.min_p) if sampling.min_p > 0 else math.inf)
        if sampling.typical_p < 1:
            kept = typical(values, sampling.typical_p)
            ids, values = ids[kept], values[kept]
        if sampling.top_p < 1:
            count = int(softmax(values).cumsum().searchsorted(sampling.top_p)) + 1
            ids, values = ids[:count], values[:count]
        return ids, values

    def _mirostat(self, logits: Floats, peak: float, chance: float) -> int:
        """Basu et al. 2021; `mu` follows the answer, so a resumed answer starts it anew."""
        sampling = self._sampling
        ids, values = within(logits, peak, math.inf)
        shares = softmax((values - values[0]).astype(np.float64) / sampling.temperature)
        surprise = -np.log2(np.maximum(shares, SHARE_MIN))
        if sampling.mirostat == 1:
            count = mirostat_count(shares, self._mu, len(logits))
        else:
            count = max(1, int((surprise <= self._mu).sum()))
        self._left = ids[:count], shares[:count]
        chosen = pick(shares[:count], chance)
        self._mu -= sampling.mirostat_eta * (float(surprise[chosen]) - sampling.mirostat_tau)
        return int(ids[chosen])

    def _drawn_by(self, logits: Floats, token: int) -> TokenLogprob:
        """The token with the probabilities it was drawn by; what had none is left out."""
        spelling = self._vocabulary.spelling
        if self.is_greedy:
            ids, weights = np.array([token], np.int64), np.ones(1)
        elif self._left is None:
            ids, values = within(logits, float(logits.max()), math.inf)
            weights = np.exp((values - values[0]).astype(np.float64) / self._sampling.temperature)
        else:
            ids, weights = self._left[0], np.asarray(self._left[1])
        total = math.log(float(weights.sum()))
        count = min(self._sampling.logprobs or 0, int((weights > 0).sum()))
        top = tuple(
            (other, spelling(other), math.log(weight) - total)
            for other, weight in zip(ids[:count].tolist(), weights[:count].tolist(), strict=True)
        )
        own = float(weights[int((ids == token).nonzero()[0][0])])
        return TokenLogprob(token, spelling(token), math.log(own) - total if own > 0 else -math.inf, top)

    def _logprob(self, raw: Floats, token: int) -> TokenLogprob:
        peak = float(raw.max())
        total = peak + math.log(float(np.exp(raw - peak).sum()))
        spelling = self._vocabulary.spelling
        top: tuple[tuple[int, bytes, float], ...] = ()
        if self._sampling.logprobs:
            count = self._sampling.logprobs
            ids, values = best(raw, column_tops(raw, count), count)
            top = tuple(
                (other, spelling(other), value - total)
                for other, value in zip(ids.tolist(), values.tolist(), strict=True)
            )
        return TokenLogprob(token, spelling(token), float(raw[token]) - total, top)


def _best_of(logits: Floats) -> int:
    token = int(logits.argmax())
    _checked(float(logits[token]))
    return token


def _checked(peak: float) -> float:
    """The best logit, if a token can be drawn.

    Raises:
        SamplingError: none can.
    """
    if math.isnan(peak) or peak == math.inf:
        raise NotANumberError("the model's output is not a number")
    if not math.isfinite(peak):
        raise SamplingError("no token is allowed")
    return peak
