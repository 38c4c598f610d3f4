"""`logit_bias` in its two forms: OpenAI's object and llama.cpp's list, token ids or texts in each."""

from __future__ import annotations

from saiserve import limits
from saiserve.api.body import invalid

LogitBias = dict[str, float | bool] | list[tuple[int | str, float | bool]]
Pairs = tuple[tuple[int | str, float], ...]
TEXT_CHARACTERS_MAX = 256
"""Characters of a text that is biased."""
NEVER = -100.0
"""The bias that `false` stands for."""


def bias_pairs(given: LogitBias | None) -> Pairs:
    """Return (token id or text, bias) pairs; `false` means never.

    Raises:
        ApiError: 400 for too many, and for biases outside −100..100.
    """
    if not given:
        return ()
    pairs = list(given.items()) if isinstance(given, dict) else list(given)
    if len(pairs) > limits.LOGIT_BIAS_MAX:
        raise invalid(f"logit_bias: at most {limits.LOGIT_BIAS_MAX} entries are taken.", "logit_bias")
    return tuple((_token(token), _bias(bias)) for token, bias in pairs)


def id_pairs(pairs: Pairs) -> tuple[tuple[int, float], ...]:
    """Return the pairs that name ids."""
    return tuple((token, bias) for token, bias in pairs if isinstance(token, int))


def text_pairs(pairs: Pairs) -> tuple[tuple[str, float], ...]:
    """Return the pairs that name texts."""
    return tuple((token, bias) for token, bias in pairs if isinstance(token, str))


def _token(token: int | str) -> int | str:
    """Return an id where a number is written, in whatever type; else the text."""
    text = str(token)
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    if isinstance(token, int) or not token or len(token) > TEXT_CHARACTERS_MAX:
        raise invalid(f"logit_bias: {text[:40]!r} is neither a token id nor a short text.", "logit_bias")
    return token


def _bias(bias: float | bool) -> float:
    if bias is False:
        return NEVER
    if bias is True or not -100 <= bias <= 100:
        raise invalid("logit_bias: a bias is a number from -100 to 100.", "logit_bias")
    return float(bias)
