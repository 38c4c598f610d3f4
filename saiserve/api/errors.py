"""An `ApiError` in the words of the route's dialect: status, headers, body, and its form inside a stream."""

from __future__ import annotations

import enum
import math
from typing import Any

import msgspec

from saiserve.errors import ApiError, ErrorKind


class ErrorStyle(enum.Enum):
    """Which public API's error object a route speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    LLAMA = "llama"


LLAMA_PATHS = frozenset(
    {
        "/completion",
        "/completions",
        "/chat/completions",
        "/chat/completions/input_tokens",
        "/infill",
        "/embedding",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/props",
        "/slots",
    }
)
"""Routes that llama-server alone has: its users read its error object there."""

LLAMA_TYPES: dict[ErrorKind, str] = {
    ErrorKind.CONTEXT_TOO_LONG: "exceed_context_size_error",
    ErrorKind.UNAUTHENTICATED: "authentication_error",
    ErrorKind.FORBIDDEN: "permission_error",
    ErrorKind.MODEL_NOT_FOUND: "not_found_error",
    ErrorKind.NOT_FOUND: "not_found_error",
    ErrorKind.BUSY: "unavailable_error",
    ErrorKind.MODEL_UNAVAILABLE: "unavailable_error",
    ErrorKind.DRAINING: "unavailable_error",
    ErrorKind.NOT_SUPPORTED: "not_supported_error",
}
"""llama-server's word for a kind; all others are `invalid_request_error` below 500 and `server_error` from there on."""


OVERFLOWING_FIELD = "messages"
"""The field that is too long where a prompt is, on routes that `OVERFLOWING_FIELDS` does not name."""
OVERFLOWING_FIELDS: dict[str, str] = {
    "/v1/completions": "prompt",
    "/v1/responses": "input",
    "/responses": "input",
    "/v1/embeddings": "input",
    "/embeddings": "input",
    "/embedding": "content",
    "/v1/rerank": "documents",
    "/rerank": "documents",
    "/v1/reranking": "documents",
    "/reranking": "documents",
}
"""The same on the routes whose prompt has another name."""


def error_style(path: str) -> ErrorStyle:
    """Return the style for a path, known or not: OpenAI's unless the route is Anthropic's or llama-server's alone."""
    if path.rstrip("/").startswith(("/v1/messages", "/v1/v1/messages", "/v1/complete/")):
        return ErrorStyle.ANTHROPIC
    return ErrorStyle.LLAMA if path in LLAMA_PATHS else ErrorStyle.OPENAI


def overflowing_field(path: str) -> str:
    """Return the field that holds a route's prompt, as an overflow names it in OpenAI's style."""
    return OVERFLOWING_FIELDS.get(path.rstrip("/"), OVERFLOWING_FIELD)


def error_object(
    error: ApiError, style: ErrorStyle, request_id: str = "", *, field: str = OVERFLOWING_FIELD
) -> dict[str, Any]:
    """Return the error's JSON object. Values are always valid Unicode, whatever the message quotes.

    `field` is where the route's prompt is: the one that an overflow is told of unless the error names another, with its
    place among several.
    """
    if error.param is not None:
        field = error.param
    elif error.index is not None:
        field = f"{field}[{error.index}]"
    message = printable(_message(error, style, field))
    if style is ErrorStyle.ANTHROPIC:
        body: dict[str, Any] = {"type": "error", "error": {"type": error.row.anthropic_type, "message": message}}
        if request_id:
            body["request_id"] = request_id
        return body
    if style is ErrorStyle.LLAMA:
        return {"error": _llama_object(error, message, None if error.index is None else field)}
    param = field if error.param is None and error.kind is ErrorKind.CONTEXT_TOO_LONG else error.param
    return {
        "error": {
            "message": message,
            "type": error.row.openai_type,
            "param": None if param is None else printable(param),
            "code": error.row.openai_code,
        }
    }


def _llama_object(error: ApiError, message: str, field: str | None) -> dict[str, Any]:
    """Return llama-server's error object: `code` is the HTTP status. `param`, which it has not, names a field at fault."""
    status = error.row.status
    kind = LLAMA_TYPES.get(error.kind, "invalid_request_error" if status < 500 else "server_error")
    body: dict[str, Any] = {"code": status, "message": message, "type": kind}
    param = field if error.param is None else error.param
    if param is not None:
        body["param"] = printable(param)
    if error.kind is ErrorKind.CONTEXT_TOO_LONG:
        body |= {"n_prompt_tokens": error.prompt_tokens, "n_ctx": error.context_tokens}
    return body


def _message(error: ApiError, style: ErrorStyle, field: str) -> str:
    """Return the message; an overflow in the words by which each kind of client knows to shorten its prompt."""
    if error.kind is not ErrorKind.CONTEXT_TOO_LONG:
        return error.message
    have, room = error.prompt_tokens, error.context_tokens
    if style is ErrorStyle.LLAMA:
        if not have:
            return f"request exceeds the available context size: {error.message}"
        return f"request ({have} tokens) exceeds the available context size ({room} tokens), try increasing it"
    if style is ErrorStyle.ANTHROPIC:
        return f"prompt is too long: {have} tokens > {room} maximum" if have else f"prompt is too long: {error.message}"
    if not have:
        return f"The prompt exceeds the model's maximum context length: {error.message}"
    return (
        f"This model's maximum context length is {room} tokens. However, your {field} resulted in {have} tokens. "
        f"Please reduce the length of the {field}."
    )


def error_body(error: ApiError, style: ErrorStyle, request_id: str = "", *, field: str = OVERFLOWING_FIELD) -> bytes:
    """Return the whole body of an error reply; `field` as for `error_object`."""
    return msgspec.json.encode(error_object(error, style, request_id, field=field))


def error_headers(error: ApiError, style: ErrorStyle) -> list[tuple[str, str]]:
    """Return the headers an error adds: `Retry-After`, `WWW-Authenticate`, and its own."""
    headers = list(error.headers)
    if error.retry_after_s is not None:
        # RFC 9110 §10.2.3 wants whole seconds; rounding up never invites a client too early.
        headers.append(("Retry-After", str(max(1, math.ceil(error.retry_after_s)))))
    names = {name.lower() for name, _ in headers}
    if error.kind is ErrorKind.UNAUTHENTICATED and "www-authenticate" not in names:
        headers.append(("WWW-Authenticate", f'Bearer realm="{style.value}"'))
    return headers


def printable(text: str) -> str:
    """Return `text` with lone surrogates replaced, so that it encodes as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")
