"""llama-server's `timings` and `prompt_progress`: members it adds to answers, which its users read and others ignore."""

from __future__ import annotations

from typing import Any

from saiserve.chat.events import PromptProgress, TextDelta, Usage

FINGERPRINT = "b-saiserve"
"""`system_fingerprint`, and llama-server's `build_info`, which begins with b."""


def timings_object(usage: Usage) -> dict[str, Any]:
    """Return llama-server's timings: the prompt's new tokens, then the answer's, whose first token takes no step."""
    new = max(0, usage.prompt_tokens - usage.cached_tokens)
    predicted, steps = usage.completion_tokens, max(0, usage.completion_tokens - 1)
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": new,
        "prompt_ms": usage.prompt_s * 1e3,
        "prompt_per_token_ms": _ratio(usage.prompt_s * 1e3, new),
        "prompt_per_second": _ratio(new, usage.prompt_s),
        "predicted_n": predicted,
        "predicted_ms": usage.decode_s * 1e3,
        "predicted_per_token_ms": _ratio(usage.decode_s * 1e3, steps),
        "predicted_per_second": _ratio(steps, usage.decode_s),
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def progress_object(progress: PromptProgress, elapsed_s: float) -> dict[str, Any]:
    """Return llama-server's `prompt_progress`."""
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.processed,
        "time_ms": elapsed_s * 1e3,
    }


class Stopwatch:
    """Timings while an answer goes on, for `timings_per_token`: fed the events, read when one is encoded.

    `now` is seconds of some clock that does not jump.
    """

    def __init__(self, now: float) -> None:
        self._begun = now
        self._first = 0.0
        self._prompt = 0
        self._cached = 0
        self._predicted = 0

    def prompt(self, now: float, progress: PromptProgress) -> dict[str, Any]:
        """Take in how far the prompt is, and return the timings of it."""
        self._prompt, self._cached = progress.processed, progress.cached
        is_begun = progress.processed > progress.cached
        return timings_object(Usage(self._prompt, self._cached, 0, prompt_s=now - self._begun if is_begun else 0.0))

    def token(self, now: float, delta: TextDelta) -> dict[str, Any]:
        """Take in a delta, and return the timings so far."""
        self._first = self._first or now
        self._predicted += len(delta.tokens)
        usage = Usage(
            self._prompt,
            self._cached,
            self._predicted,
            prompt_s=self._first - self._begun,
            decode_s=now - self._first,
        )
        return timings_object(usage)

    def started(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Take in the prompt's counts."""
        self._prompt, self._cached = prompt_tokens, cached_tokens

    def elapsed(self, now: float) -> float:
        """Return the seconds since the beginning."""
        return now - self._begun
