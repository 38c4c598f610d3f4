"""Faults as a client may see them: one kind, one row, every dialect.

A row says whose fault it is, the HTTP status, and the words each public API uses for it. Handlers raise `ApiError`;
only the dialect encoders turn one into bytes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Fault(enum.Enum):
    """Whose fault it is."""

    CLIENT = "client"
    SERVER = "server"
    UPSTREAM = "upstream"


class ErrorKind(enum.Enum):
    """What went wrong, in this product's own words."""

    INVALID_REQUEST = "invalid_request"
    CONTEXT_TOO_LONG = "context_too_long"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TOO_LARGE = "body_too_large"
    BODY_TOO_SLOW = "body_too_slow"
    HEAD_TOO_LARGE = "head_too_large"
    VERSION_NOT_SPOKEN = "version_not_spoken"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    UPGRADE_REQUIRED = "upgrade_required"
    RATE_LIMITED = "rate_limited"
    BUSY = "busy"
    MODEL_UNAVAILABLE = "model_unavailable"
    DRAINING = "draining"
    ENGINE_FAILED = "engine_failed"
    UPSTREAM_FAILED = "upstream_failed"
    UPSTREAM_SAYS_NO = "upstream_says_no"
    TIMED_OUT = "timed_out"
    NOT_SUPPORTED = "not_supported"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """How one kind is spoken: HTTP status, OpenAI `type` and `code`, Anthropic `type`."""

    fault: Fault
    status: int
    openai_type: str
    openai_code: str | None
    anthropic_type: str


ERRORS: dict[ErrorKind, ErrorRow] = {
    ErrorKind.INVALID_REQUEST: ErrorRow(Fault.CLIENT, 400, "invalid_request_error", None, "invalid_request_error"),
    ErrorKind.CONTEXT_TOO_LONG: ErrorRow(
        Fault.CLIENT, 400, "invalid_request_error", "context_length_exceeded", "invalid_request_error"
    ),
    ErrorKind.UNAUTHENTICATED: ErrorRow(
        Fault.CLIENT, 401, "invalid_request_error", "invalid_api_key", "authentication_error"
    ),
    ErrorKind.FORBIDDEN: ErrorRow(Fault.CLIENT, 403, "permission_error", "forbidden", "permission_error"),
    ErrorKind.MODEL_NOT_FOUND: ErrorRow(
        Fault.CLIENT, 404, "invalid_request_error", "model_not_found", "not_found_error"
    ),
    ErrorKind.NOT_FOUND: ErrorRow(Fault.CLIENT, 404, "invalid_request_error", "not_found", "not_found_error"),
    ErrorKind.METHOD_NOT_ALLOWED: ErrorRow(
        Fault.CLIENT, 405, "invalid_request_error", "method_not_allowed", "invalid_request_error"
    ),
    ErrorKind.BODY_TOO_LARGE: ErrorRow(
        Fault.CLIENT, 413, "invalid_request_error", "request_too_large", "request_too_large"
    ),
    ErrorKind.BODY_TOO_SLOW: ErrorRow(Fault.CLIENT, 408, "invalid_request_error", "request_timeout", "timeout_error"),
    ErrorKind.HEAD_TOO_LARGE: ErrorRow(
        Fault.CLIENT, 431, "invalid_request_error", "request_header_fields_too_large", "request_too_large"
    ),
    ErrorKind.VERSION_NOT_SPOKEN: ErrorRow(
        Fault.CLIENT, 505, "invalid_request_error", "http_version_not_supported", "invalid_request_error"
    ),
    ErrorKind.UNSUPPORTED_MEDIA_TYPE: ErrorRow(
        Fault.CLIENT, 415, "invalid_request_error", "unsupported_media_type", "invalid_request_error"
    ),
    ErrorKind.UPGRADE_REQUIRED: ErrorRow(
        Fault.CLIENT, 426, "invalid_request_error", "upgrade_required", "invalid_request_error"
    ),
    ErrorKind.RATE_LIMITED: ErrorRow(Fault.CLIENT, 429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error"),
    ErrorKind.BUSY: ErrorRow(Fault.SERVER, 503, "server_error", "server_is_overloaded", "overloaded_error"),
    ErrorKind.MODEL_UNAVAILABLE: ErrorRow(Fault.SERVER, 503, "server_error", "model_unavailable", "overloaded_error"),
    ErrorKind.DRAINING: ErrorRow(Fault.SERVER, 503, "server_error", "server_is_draining", "overloaded_error"),
    ErrorKind.ENGINE_FAILED: ErrorRow(Fault.SERVER, 500, "server_error", "engine_failed", "api_error"),
    ErrorKind.UPSTREAM_FAILED: ErrorRow(Fault.UPSTREAM, 502, "server_error", "upstream_failed", "api_error"),
    ErrorKind.UPSTREAM_SAYS_NO: ErrorRow(
        Fault.CLIENT, 400, "invalid_request_error", "upstream_refused", "invalid_request_error"
    ),
    ErrorKind.TIMED_OUT: ErrorRow(Fault.SERVER, 504, "server_error", "timed_out", "timeout_error"),
    ErrorKind.NOT_SUPPORTED: ErrorRow(
        Fault.CLIENT, 501, "invalid_request_error", "not_supported", "invalid_request_error"
    ),
    ErrorKind.INTERNAL: ErrorRow(Fault.SERVER, 500, "server_error", "internal_error", "api_error"),
}


class ApiError(Exception):
    """A fault to be told to the client.

    `message` is shown to the client: it names the fault and the mend, and holds no secret. `param` is the request
    field at fault. `retry_after_s` becomes `Retry-After` (RFC 9110 §10.2.3). `prompt_tokens` and `context_tokens`
    go with CONTEXT_TOO_LONG, so that each dialect can use the wording its clients recognise; so does `index`, which of
    several inputs does not fit.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        prompt_tokens: int = 0,
        context_tokens: int = 0,
        index: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers = headers
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens
        self.index = index

    @property
    def row(self) -> ErrorRow:
        """How this error is spoken."""
        return ERRORS[self.kind]


class SettingsError(Exception):
    """The operator's settings are wrong; nothing was started. The message names the setting and the mend."""
