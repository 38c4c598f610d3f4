"""OpenAI Responses: its words for how an answer failed or stayed incomplete, and for what it cost."""

from __future__ import annotations

from typing import Any

from saiserve.chat.events import StopKind, Usage
from saiserve.errors import ErrorKind

FAILURE_CODES: dict[ErrorKind, str] = {
    ErrorKind.CONTEXT_TOO_LONG: "context_length_exceeded",
    ErrorKind.RATE_LIMITED: "rate_limit_exceeded",
    ErrorKind.BUSY: "server_is_overloaded",
    ErrorKind.INVALID_REQUEST: "invalid_prompt",
}
"""Codes of `response.failed`; all others are `server_error`."""


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the usage of a response."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


INCOMPLETE_REASONS = {StopKind.LENGTH: "max_output_tokens", StopKind.REFUSAL: "content_filter"}
"""Ends that leave a response incomplete."""
