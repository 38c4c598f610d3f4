"""What an engine's refusal means to the client: an error of its own, or a reason to ask elsewhere."""

from __future__ import annotations

from saiserve.engines.messages import RefusalReason, Refused
from saiserve.errors import ApiError, ErrorKind

_FINAL: dict[RefusalReason, ErrorKind] = {
    RefusalReason.TOO_LONG: ErrorKind.CONTEXT_TOO_LONG,
    RefusalReason.BAD_TEMPLATE: ErrorKind.INVALID_REQUEST,
    RefusalReason.BAD_SCHEMA: ErrorKind.INVALID_REQUEST,
    RefusalReason.BAD_REQUEST: ErrorKind.INVALID_REQUEST,
    RefusalReason.QUARANTINED: ErrorKind.ENGINE_FAILED,
    RefusalReason.UPSTREAM_SAYS_NO: ErrorKind.UPSTREAM_SAYS_NO,
}


def final_error(refused: Refused) -> ApiError | None:
    """The error to tell the client when no other place would answer better; None when another may."""
    kind = _FINAL.get(refused.reason)
    return None if kind is None else _error(kind, refused)


_OF_UPSTREAM: dict[RefusalReason, ErrorKind] = {
    RefusalReason.RATE_LIMITED: ErrorKind.RATE_LIMITED,
    RefusalReason.UPSTREAM_FAULT: ErrorKind.UPSTREAM_FAILED,
}


def upstream_error(refused: Refused) -> ApiError | None:
    """The error to tell when an upstream's refusal is the last word: it is not asked again for this request."""
    kind = _OF_UPSTREAM.get(refused.reason)
    return None if kind is None else _error(kind, refused)


def _error(kind: ErrorKind, refused: Refused) -> ApiError:
    return ApiError(
        kind,
        refused.detail or f"the engine refused the request: {refused.reason}",
        retry_after_s=refused.retry_after_s or None,
        prompt_tokens=refused.prompt_tokens,
        context_tokens=refused.context_tokens,
    )
