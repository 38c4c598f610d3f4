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
}


def final_error(refused: Refused) -> ApiError | None:
    """The error to tell the client when no other place would answer better; None when another may."""
    kind = _FINAL.get(refused.reason)
    if kind is None:
        return None
    return ApiError(
        kind,
        refused.detail or f"the engine refused the request: {refused.reason}",
        prompt_tokens=refused.prompt_tokens,
        context_tokens=refused.context_tokens,
    )
