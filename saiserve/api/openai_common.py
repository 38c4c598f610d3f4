"""What the OpenAI-shaped dialects share: usage, finish reasons, log-probabilities."""

from __future__ import annotations

import math
from typing import Any

from saiserve.chat.events import StopKind, Usage
from saiserve.engines.messages import TokenLogprob

FINISH_REASONS: dict[StopKind, str] = {
    StopKind.END: "stop",
    StopKind.STOP_STRING: "stop",
    StopKind.LENGTH: "length",
    StopKind.TOOL_CALLS: "tool_calls",
    StopKind.REFUSAL: "content_filter",
}

LOGPROB_FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return OpenAI's usage: the prompt count includes what came from the cache."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def logprob_entries(logprobs: list[TokenLogprob] | tuple[TokenLogprob, ...]) -> list[dict[str, Any]]:
    """Return the entries of a chat choice's `logprobs.content`."""
    return [
        {
            "id": entry.token,
            **_token(entry.piece, entry.logprob),
            "top_logprobs": [{"id": token, **_token(piece, logprob)} for token, piece, logprob in entry.top],
        }
        for entry in logprobs
    ]


def _token(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token_text(piece), "logprob": finite(logprob), "bytes": list(piece)}


def token_text(piece: bytes) -> str:
    """Return a token's text; bytes that are no whole character show as U+FFFD, `bytes` beside it is exact."""
    return piece.decode("utf-8", "replace")


def finite(logprob: float) -> float:
    """Return a number JSON can hold."""
    return logprob if math.isfinite(logprob) else LOGPROB_FLOOR
