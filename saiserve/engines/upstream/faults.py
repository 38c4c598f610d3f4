"""What went wrong at a target, and what that means to the client: by status before an answer, by event inside one.

The client's own faults keep the target's words. Ours (a key that is not taken, a model it does not know) are told as ours,
502, without quoting what might hold a secret; the log has the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from saiserve.engines.messages import RefusalReason, Refused
from saiserve.engines.upstream.shapes import count_of
from saiserve.errors import ApiError, ErrorKind

MESSAGE_CHARACTERS_MAX: Final = 2_000
RETRY_AFTER_MAX_S: Final = 3_600.0

_OVERFLOW: Final = (
    "context_length_exceeded",
    "exceed_context_size_error",
    "prompt is too long",
    "maximum context length",
    "exceeds the context window",
    "exceeds the available context size",
    "reduce the length of the messages",
)
"""Words by which servers say that a prompt does not fit."""
_OVERFLOW_NUMBERS: Final = (
    (re.compile(r"(\d+) tokens? > (\d+) maximum"), (1, 2)),
    (re.compile(r"maximum context length is (\d+) tokens.{0,80}?(\d+) tokens", re.DOTALL), (2, 1)),
    (re.compile(r"request \((\d+) tokens\) exceeds the available context size \((\d+)"), (1, 2)),
)


class UpstreamFault(Exception):  # noqa: N818  # the word for it everywhere
    """An answer of a target cannot be read on. `error` is what the client is told; it holds no secret."""

    def __init__(
        self, kind: ErrorKind, message: str, *, retry_after_s: float | None = None, is_told: bool = False
    ) -> None:
        super().__init__(message)
        self.is_told = is_told
        """The target said so itself, in its own dialect."""
        self.error = ApiError(kind, message, retry_after_s=retry_after_s)


@dataclass(frozen=True, slots=True)
class Said:
    """A target's error object, in either dialect's form or none."""

    message: str
    words: str
    """Type and code, lower case."""
    numbers: tuple[int, int] = (0, 0)
    """Prompt and context tokens, where it names them in fields."""


def read_error(body: bytes) -> Said:
    """What an error body says; total on any bytes."""
    try:
        parsed: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return Said("", "")
    return error_of(parsed)


def error_of(parsed: Any) -> Said:
    """What a decoded error says."""
    inner = parsed.get("error", parsed) if isinstance(parsed, Mapping) else parsed
    if isinstance(inner, str):
        return Said(inner[:MESSAGE_CHARACTERS_MAX], "")
    if not isinstance(inner, Mapping):
        return Said("", "")
    message = inner.get("message") or inner.get("detail") or ""
    words = " ".join(str(inner.get(name) or "") for name in ("type", "code"))
    numbers = (count_of(inner.get("n_prompt_tokens")), count_of(inner.get("n_ctx")))
    return Said(str(message)[:MESSAGE_CHARACTERS_MAX], words.lower()[:200], numbers)


def refusal(request_id: str, target: str, status: int, headers: Mapping[str, str], body: bytes) -> Refused:
    """What a status other than 200 means for the attempt."""
    said = read_error(body)
    again = retry_after(headers)
    if status in (400, 413, 422) and _is_overflow(said):
        have, room = overflow_numbers(said)
        return Refused(request_id, RefusalReason.TOO_LONG, said.message, prompt_tokens=have, context_tokens=room)
    if status in (400, 409, 413, 422):
        detail = said.message or f"the upstream {target!r} refused the request with {status} and no reason"
        return Refused(request_id, RefusalReason.UPSTREAM_SAYS_NO, detail)
    if status in (429, 529) or (status == 503 and again):
        detail = f"the upstream {target!r} takes no more requests now: {said.message or f'status {status}'}"
        return Refused(request_id, RefusalReason.RATE_LIMITED, detail, retry_after_s=again)
    return Refused(request_id, RefusalReason.UPSTREAM_FAULT, _our_fault(target, status, said))


def _our_fault(target: str, status: int, said: Said) -> str:
    if status in (401, 403):
        return f"the upstream {target!r} does not take this node's key ({status}): the operator must check it"
    if status == 404:
        return f"the upstream {target!r} does not know the model or the path (404): the operator must check them"
    if 300 <= status < 400:
        return f"the upstream {target!r} sends requests elsewhere ({status}), which is not followed"
    return f"the upstream {target!r} failed with {status}{f': {said.message}' if said.message else ''}"


def in_stream(target: str, parsed: Any) -> UpstreamFault:
    """What an error event inside a stream means."""
    said = error_of(parsed)
    message = f"the upstream {target!r} broke off: {said.message or said.words or 'no reason given'}"
    if _is_overflow(said):
        return UpstreamFault(ErrorKind.CONTEXT_TOO_LONG, said.message, is_told=True)
    if "overloaded" in said.words or "busy" in said.words:
        return UpstreamFault(ErrorKind.BUSY, message, retry_after_s=5.0, is_told=True)
    if "rate_limit" in said.words:
        return UpstreamFault(ErrorKind.RATE_LIMITED, message, retry_after_s=5.0, is_told=True)
    return UpstreamFault(ErrorKind.UPSTREAM_FAILED, message, is_told=True)


def refused_by(fault: UpstreamFault, request_id: str) -> Refused:
    """A fault before the first word as a refusal, so that another candidate may answer."""
    error = fault.error
    reason = {
        ErrorKind.CONTEXT_TOO_LONG: RefusalReason.TOO_LONG,
        ErrorKind.BUSY: RefusalReason.RATE_LIMITED,
        ErrorKind.RATE_LIMITED: RefusalReason.RATE_LIMITED,
    }.get(error.kind, RefusalReason.UPSTREAM_FAULT)
    return Refused(request_id, reason, error.message, retry_after_s=error.retry_after_s or 0.0)


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds a target asks to wait (`retry-after-ms`, or RFC 9110 §10.2.3 in seconds); 0 when it says nothing."""
    for name, scale in (("retry-after-ms", 1_000.0), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        try:
            seconds = float(text) / scale
        except ValueError:
            continue
        if seconds > 0:
            return min(seconds, RETRY_AFTER_MAX_S)
    return 1.0 if _is_date(headers.get("retry-after", "")) else 0.0


def _is_date(text: str) -> bool:
    """Whether it is the date form; without trusting two clocks to agree it means "later"."""
    try:
        parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return False
    return True


def _is_overflow(said: Said) -> bool:
    text = f"{said.words} {said.message.lower()}"
    return any(words in text for words in _OVERFLOW)


def overflow_numbers(said: Said) -> tuple[int, int]:
    """(prompt tokens, context tokens) of an overflow; zeros where they are not told."""
    if all(said.numbers):
        return said.numbers
    for pattern, (prompt, context) in _OVERFLOW_NUMBERS:
        found = pattern.search(said.message)
        if found is not None:
            return count_of(int(found.group(prompt)[:12])), count_of(int(found.group(context)[:12]))
    return 0, 0
