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


def error_style(path: str) -> ErrorStyle:
    """Return the style for a path, known or not: Anthropic's for its own routes, OpenAI's for all others."""
    is_anthropic = path.rstrip("/").startswith(("/v1/messages", "/v1/v1/messages", "/v1/complete/"))
    return ErrorStyle.ANTHROPIC if is_anthropic else ErrorStyle.OPENAI


def error_object(error: ApiError, style: ErrorStyle, request_id: str = "") -> dict[str, Any]:
    """Return the error's JSON object. Values are always valid Unicode, whatever the message quotes."""
    message = printable(_message(error, style))
    if style is ErrorStyle.ANTHROPIC:
        body: dict[str, Any] = {"type": "error", "error": {"type": error.row.anthropic_type, "message": message}}
        if request_id:
            body["request_id"] = request_id
        return body
    param = "messages" if error.param is None and error.kind is ErrorKind.CONTEXT_TOO_LONG else error.param
    return {
        "error": {
            "message": message,
            "type": error.row.openai_type,
            "param": None if param is None else printable(param),
            "code": error.row.openai_code,
        }
    }


def _message(error: ApiError, style: ErrorStyle) -> str:
    """Return the message; an overflow in the words by which each kind of client knows to shorten its prompt."""
    if error.kind is not ErrorKind.CONTEXT_TOO_LONG:
        return error.message
    have, room = error.prompt_tokens, error.context_tokens
    if style is ErrorStyle.ANTHROPIC:
        return f"prompt is too long: {have} tokens > {room} maximum" if have else f"prompt is too long: {error.message}"
    if not have:
        return f"The prompt exceeds the model's maximum context length: {error.message}"
    return (
        f"This model's maximum context length is {room} tokens. However, your messages resulted in {have} tokens. "
        "Please reduce the length of the messages."
    )


def error_body(error: ApiError, style: ErrorStyle, request_id: str = "") -> bytes:
    """Return the whole body of an error reply."""
    return msgspec.json.encode(error_object(error, style, request_id))


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
