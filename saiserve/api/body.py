"""From a body's bytes to a validated struct: the only way into a dialect.

One reading for every dialect: strict UTF-8 JSON without NaN, byte order mark or lone surrogates; the last of duplicate
keys wins; null is absent; unknown fields are ignored; a wrong type or range names its field.
"""

from __future__ import annotations

import re
import zlib
from typing import Any, TypeVar

import msgspec

from saiserve import limits
from saiserve.errors import ApiError, ErrorKind

T = TypeVar("T")

_OPAQUE = frozenset(
    {"parameters", "input_schema", "schema", "input", "arguments", "chat_template_kwargs", "json_schema"}
)
"""Objects under these keys are the client's own data: a null in them is a value."""
_WRAPPER = ("response_format", "json_schema")
"""Where OpenAI's `{name, schema, strict}` stands, which llama.cpp's `json_schema`, a schema itself, has the name of."""

_CONTAINERS = frozenset({dict, list})

_PATH = re.compile(r"^(?P<fault>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`")


def invalid(message: str, param: str | None = None) -> ApiError:
    """Return the error for a request the client must mend."""
    return ApiError(ErrorKind.INVALID_REQUEST, message, param=param)


def told(*values: str) -> msgspec.Meta:
    """What `/openapi.json` says of a text whose values the decoder checks, with an error of its own."""
    return msgspec.Meta(extra_json_schema={"enum": list(values)})


def check_media_type(content_type: str) -> None:
    """Refuse a body that does not claim to be JSON; no claim at all, and curl's default claim, are let pass.

    Raises:
        ApiError: 415 (RFC 9110 §15.5.16).
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type in {"", "application/json", "application/x-www-form-urlencoded"} or media_type.endswith("+json"):
        return
    raise ApiError(
        ErrorKind.UNSUPPORTED_MEDIA_TYPE,
        "The body must be JSON: send `Content-Type: application/json`.",
        headers=(("Accept-Post", "application/json"),),
    )


def decompress(data: bytes, content_encoding: str, limit: int = limits.BODY_BYTES_MAX) -> bytes:
    """Undo `Content-Encoding`: gzip, deflate or none, never to more than `limit` bytes.

    Raises:
        ApiError: 400 for bytes that are not what they claim, 413 beyond the limit, 415 for other encodings.
    """
    encoding = content_encoding.strip().lower()
    if encoding in {"", "identity"}:
        return data
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise ApiError(
            ErrorKind.UNSUPPORTED_MEDIA_TYPE,
            "This Content-Encoding is not read here; send the body plain, or with gzip or deflate.",
            headers=(("Accept-Encoding", "gzip, deflate, identity"),),
        )
    reader = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        plain = reader.decompress(data, limit + 1)
    except zlib.error as error:
        raise invalid(f"The body is not valid {encoding} data.") from error
    if len(plain) > limit:
        raise too_large(limit)
    if not reader.eof:
        raise invalid(f"The body's {encoding} data is cut short.")
    if reader.unused_data:
        raise invalid(f"The body has bytes behind the end of its {encoding} data.")
    return plain


def too_large(limit: int = limits.BODY_BYTES_MAX) -> ApiError:
    """Return the error for a body beyond the limit."""
    return ApiError(ErrorKind.BODY_TOO_LARGE, f"The body is larger than {limit} bytes, the most taken here.")


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse a JSON object, nulls removed outside the client's own data.

    Raises:
        ApiError: 400 that says what is wrong with the bytes.
    """
    if not data.strip(b" \t\r\n"):
        raise invalid("The body is empty; a JSON object is needed.")
    try:
        parsed = msgspec.json.decode(data)
    except RecursionError as error:
        raise _too_deep() from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise invalid(f"The body is not valid JSON: {error}.") from error
    if not isinstance(parsed, dict):
        raise invalid(f"The body must be a JSON object, not {_json_kind(parsed)}.")
    _check_depth(parsed)
    cleaned: dict[str, Any] = _without_nulls(parsed)
    return cleaned


def decode(data: bytes, body_type: type[T]) -> T:
    """Parse and validate a body.

    Raises:
        ApiError: 400; `param` names the field at fault.
    """
    return validate(parse_object(data), body_type)


def validate(value: Any, body_type: type[T], prefix: str = "") -> T:
    """Validate parsed JSON against a struct; `prefix` is the path of `value` in the body.

    Raises:
        ApiError: 400; `param` names the field at fault.
    """
    try:
        return msgspec.convert(value, body_type, strict=True)
    except msgspec.ValidationError as error:
        raise _field_error(str(error), prefix) from error


def _field_error(text: str, prefix: str) -> ApiError:
    match = _PATH.match(text)
    fault, path = (match["fault"], match["path"] or "$") if match else (text, "$")
    param = prefix + path.removeprefix("$").replace("[...]", "")
    missing = _MISSING.search(fault)
    if missing:
        param = f"{param}.{missing['field']}"
        fault = "This field is required"
    param = param.lstrip(".")
    return invalid(f"{param}: {fault}." if param else f"{fault}.", param or None)


def _check_depth(value: Any) -> None:
    """Refuse nesting beyond the limit, without recursion."""
    level: list[Any] = [value]
    for _ in range(limits.JSON_DEPTH_MAX):
        level = [
            child
            for container in level
            if not _is_flat(container)
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise _too_deep()


def _is_flat(container: dict[str, Any] | list[Any]) -> bool:
    """Whether it holds no containers. A look at the types: of a prompt of millions of tokens none is touched further."""
    values = container.values() if isinstance(container, dict) else container
    return _CONTAINERS.isdisjoint(map(type, values))


def _too_deep() -> ApiError:
    return invalid(f"The body is nested deeper than {limits.JSON_DEPTH_MAX} levels.")


def _without_nulls(value: Any, under: str = "") -> Any:
    """Return the same data with null members dropped; depth is bounded by `_check_depth`."""
    if isinstance(value, dict):
        return {
            key: child
            if key in _OPAQUE and isinstance(child, dict) and (under, key) != _WRAPPER
            else _without_nulls(child, key)
            for key, child in value.items()
            if child is not None
        }
    if isinstance(value, list) and not _is_flat(value):
        return [_without_nulls(child) for child in value]
    return value


def _json_kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return names.get(type(value), "something else")
