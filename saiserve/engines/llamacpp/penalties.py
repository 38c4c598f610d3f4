"""What earlier tokens take away from a token's logit: repetition, frequency, presence, and DRY for whole phrases.

Pure functions over numpy arrays. Sources: Keskar et al. 2019 (repetition), the OpenAI API reference (frequency,
presence), p-e-w's DRY proposal as llama.cpp computes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from saiserve.engines.messages import Sampling

DRY_MATCH_MAX = 64
"""Longest repeated phrase that is measured, in tokens; base^64 is beyond any logit."""
DRY_PENALTY_MAX = 1e6
"""Beyond any logit."""


class Penalties:
    """Penalties of one answer; knows the tokens so far.

    `repeat_penalty` looks at the last `repeat_last_n` tokens of prompt and answer; frequency and presence count the
    answer's tokens alone.
    """

    def __init__(
        self, sampling: Sampling, prompt: tuple[int, ...], answer: tuple[int, ...], is_breaker: Callable[[int], bool]
    ) -> None:
        self._sampling = sampling
        self._history = [*prompt, *answer]
        self._counts = Counter(answer)
        self._is_breaker = is_breaker
        self._repeats = sampling.repeat_penalty != 1.0 and sampling.repeat_last_n != 0
        self._counted = sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0
        self._dry = sampling.dry_multiplier > 0.0 and sampling.dry_penalty_last_n != 0
        self.active = self._repeats or self._counted or self._dry

    def accept(self, token: int) -> None:
        """A token joined the answer."""
        if self.active:
            self._history.append(token)
            self._counts[token] += 1

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Lower the logits in place."""
        if self._repeats:
            ids = np.unique(np.asarray(self._window(self._sampling.repeat_last_n)))
            values, penalty = logits[ids], self._sampling.repeat_penalty
            logits[ids] = np.where(values > 0, values / penalty, values * penalty)
        if self._counted and self._counts:
            ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
            counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            logits[ids] -= counts * self._sampling.frequency_penalty + self._sampling.presence_penalty
        if self._dry:
            self._apply_dry(logits)

    def _window(self, last: int) -> list[int]:
        return self._history if last < 0 else self._history[-last:]

    def _apply_dry(self, logits: NDArray[np.float32]) -> None:
        sampling = self._sampling
        newest_first = np.asarray(self._window(sampling.dry_penalty_last_n)[::-1])
        limit = self._since_breaker(newest_first)
        for token, length in repeated_continuations(newest_first, limit).items():
            if length >= sampling.dry_allowed_length and not self._is_breaker(token):
                growth = sampling.dry_base ** (length - sampling.dry_allowed_length)
                logits[token] -= min(sampling.dry_multiplier * growth, DRY_PENALTY_MAX)

    def _since_breaker(self, newest_first: NDArray[np.int64]) -> int:
        """How many of the newest tokens come after the last breaker."""
        for index, token in enumerate(newest_first[:DRY_MATCH_MAX].tolist()):
            if self._is_breaker(token):
                return index
        return min(len(newest_first), DRY_MATCH_MAX)


def repeated_continuations(newest_first: NDArray[np.int64], limit: int) -> dict[int, int]:
    """For each token that followed an earlier copy of the newest tokens, the longest such copy's length.

    Args:
        newest_first: token ids, the last one first.
        limit: longest copy to look for.
    """
    found: dict[int, int] = {}
    if limit < 1 or len(newest_first) < 2:
        return found
    ends = np.flatnonzero(newest_first[1:] == newest_first[0]) + 1
    length = 1
    while len(ends):
        found |= dict.fromkeys(np.unique(newest_first[ends - 1]).tolist(), length)
        if length == limit:
            break
        ends = ends[ends + length < len(newest_first)]
        ends = ends[newest_first[ends + length] == newest_first[length]]
        length += 1
    return found
