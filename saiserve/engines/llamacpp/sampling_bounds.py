"""What a request's sampling values may be, and how far out they still make a difference. Pure.

A value far out in a stage's range does what the end of that range does, without the overflow it would compute with.
"""

from __future__ import annotations

import math

import msgspec

from saiserve.engines.messages import Sampling

LOGIT_BIAS_MAX = 100.0
TOP_LOGPROBS_MAX = 20

GREEDY_BELOW = 1e-4
"""Temperatures below it are greedy: a logit 0.01 short of the best has e^-100 of its chance."""
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1e6),
    "top_p": (1e-9, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (1e-9, 1.0),
    "repeat_penalty": (1e-3, 1e3),
    "frequency_penalty": (-1e4, 1e4),
    "presence_penalty": (-1e4, 1e4),
    "dry_multiplier": (0.0, 1e4),
    "dry_base": (0.0, 1e3),
    "dry_allowed_length": (0, 1 << 20),
    "mirostat_tau": (0.0, 64.0),
    "mirostat_eta": (0.0, 1.0),
}
"""Least and greatest that are computed with. At temperature 10^6 all tokens are alike, at a mirostat goal of 64 bits
no vocabulary is surprising enough; penalties at their ends are far beyond any logit."""


def sampling_fault(sampling: Sampling, vocabulary_size: int) -> str | None:
    """What is wrong with a request's sampling values; None when nothing is."""
    numbers = [
        sampling.temperature, sampling.top_p, sampling.min_p, sampling.typical_p, sampling.repeat_penalty,
        sampling.frequency_penalty, sampling.presence_penalty, sampling.dry_multiplier, sampling.dry_base,
        sampling.xtc_probability, sampling.xtc_threshold, sampling.mirostat_tau, sampling.mirostat_eta,
    ]  # fmt: skip
    if not all(map(math.isfinite, numbers)):
        return "a sampling value is not a finite number"
    if sampling.repeat_penalty <= 0:
        return "repeat_penalty must be above 0"
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= TOP_LOGPROBS_MAX:
        return f"logprobs must be 0 to {TOP_LOGPROBS_MAX}"
    if sampling.mirostat not in (0, 1, 2):
        return "mirostat must be 0, 1 or 2"
    for token, bias in sampling.logit_bias:
        if not 0 <= token < vocabulary_size:
            return f"logit_bias names token {token}; this model has tokens 0 to {vocabulary_size - 1}"
        if not math.isfinite(bias) or abs(bias) > LOGIT_BIAS_MAX:
            return f"logit_bias of token {token} is {bias}; it must be -100 to 100"
    return None


def settled(sampling: Sampling) -> Sampling:
    """The same draws by values that can be computed with: each within its range, tiny temperatures greedy."""
    changed = {
        name: min(max(getattr(sampling, name), least), most)
        for name, (least, most) in RANGES.items()
        if not least <= getattr(sampling, name) <= most
    }
    if 0 < sampling.temperature < GREEDY_BELOW:
        changed["temperature"] = 0.0
    return msgspec.structs.replace(sampling, **changed) if changed else sampling
