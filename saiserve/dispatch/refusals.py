"""What an engine's refusal means to the client: an error of its own, or a reason to ask elsewhere."""

from __future__ import annotations

from saiserve.engines.messages import Failed, FailureKind, RefusalReason, Refused
from saiserve.errors import ApiError, ErrorKind

_FINAL: dict[RefusalReason, ErrorKind] = {
    RefusalReason.TOO_LONG: ErrorKind.CONTEXT_TOO_LONG,
    RefusalReason.BAD_TEMPLATE: ErrorKind.INVALID_REQUEST,
    RefusalReason.BAD_SCHEMA: ErrorKind.INVALID_REQUEST,
    RefusalReason.BAD_REQUEST: ErrorKind.INVALID_REQUEST,
    RefusalReason.QUARANTINED: ErrorKind.ENGINE_FAILED,
    RefusalReason.UPSTREAM_SAYS_NO: ErrorKind.UPSTREAM_SAYS_NO,
}

_PASSING: dict[RefusalReason, tuple[ErrorKind, str]] = {
    RefusalReason.BUSY: (ErrorKind.BUSY, "every node that serves this model is busy"),
    RefusalReason.DRAINING: (ErrorKind.DRAINING, "every node that serves this model is about to stop serving it"),
    RefusalReason.LOADING: (ErrorKind.MODEL_UNAVAILABLE, "the model is being loaded"),
    RefusalReason.NO_MODEL: (ErrorKind.MODEL_UNAVAILABLE, "no node that was asked has the model now"),
}


def final_error(refused: Refused) -> ApiError | None:
    """The error to tell the client when no other place would answer better; None when another may."""
    kind = _FINAL.get(refused.reason)
    return None if kind is None else _error(kind, refused)


_OF_UPSTREAM: dict[RefusalReason, ErrorKind] = {
    RefusalReason.RATE_LIMITED: ErrorKind.RATE_LIMITED,
    RefusalReason.UPSTREAM_FAULT: ErrorKind.UPSTREAM_FAILED,
    RefusalReason.UPSTREAM_LACKS: ErrorKind.UPSTREAM_SAYS_NO,
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
        index=refused.index,
    )


def with_reason(sentence: str, failed: Failed | None) -> str:
    """What the client is told of failed attempts: an engine's own words where it went on living and knows why.

    How a process died names files and is the operator's.
    """
    if failed is None or failed.kind is not FailureKind.INTERNAL or not failed.detail:
        return sentence
    return f"{sentence}: {failed.detail}"


def own_error(failed: Failed | None) -> ApiError | None:
    """The error to tell the client when its request failed by its own doing; None when another place may do better."""
    if failed is None or failed.kind is not FailureKind.BAD_REQUEST:
        return None
    return ApiError(ErrorKind.INVALID_REQUEST, failed.detail or "the request cannot be answered as it is")


def passing_error(refused: Refused) -> ApiError:
    """The error to tell the client when no place would take it now, in the words of the last that refused."""
    told = upstream_error(refused)
    if told is not None:
        return told
    kind, sentence = _PASSING.get(refused.reason, _PASSING[RefusalReason.NO_MODEL])
    if refused.detail and kind is ErrorKind.MODEL_UNAVAILABLE:
        sentence = f"the model cannot be served now: {refused.detail}"
    return ApiError(kind, f"{sentence}; try again later", retry_after_s=max(1.0, refused.retry_after_s))
