"""What a client is told whose bytes are no request of HTTP/1.1: the parser's words made a fault and its mend. Pure."""

from __future__ import annotations

from typing import Final

from saiserve.errors import ApiError, ErrorKind

WORDS_MAX: Final = 120
"""Characters of the parser's own words that are shown where the table has no others: they may quote the request."""

_HOST: Final = "send the name of this server as Host, once"
_LENGTH: Final = "the body has no clear length: send one Content-Length with one number, or Transfer-Encoding: chunked"
_LINE: Final = "a header is not as HTTP/1.1 has it: send each as Name: value, without line breaks or control characters"
_CHUNK: Final = (
    "the body is not chunked as Transfer-Encoding says: send each chunk as its length in hexadecimal, CRLF, its bytes, "
    "CRLF, and a chunk of length 0 as the last"
)

PARSER_FAULTS: Final[dict[str, tuple[ErrorKind, str]]] = {
    "illegal request line": (
        ErrorKind.INVALID_REQUEST,
        "the first line is no request line: send METHOD /path HTTP/1.1, and no TLS (http://, not https://)",
    ),
    "no request line received": (
        ErrorKind.INVALID_REQUEST,
        "the request begins with an empty line: send METHOD /path HTTP/1.1 first",
    ),
    "Receive buffer too long": (
        ErrorKind.HEAD_TOO_LARGE,
        "the request line and its headers, or the line before a chunk, are too long: send fewer or shorter ones",
    ),
    "Missing mandatory Host: header": (ErrorKind.INVALID_REQUEST, f"there is no Host header: {_HOST}"),
    "Found multiple Host: headers": (ErrorKind.INVALID_REQUEST, f"there are several Host headers: {_HOST}"),
    "conflicting Content-Length headers": (ErrorKind.INVALID_REQUEST, _LENGTH),
    "bad Content-Length": (ErrorKind.INVALID_REQUEST, _LENGTH),
    "multiple Transfer-Encoding headers": (ErrorKind.NOT_SUPPORTED, "there are several Transfer-Encodings: send one"),
    "Only Transfer-Encoding: chunked": (
        ErrorKind.NOT_SUPPORTED,
        "this Transfer-Encoding is not read here: send chunked, or Content-Length",
    ),
    "illegal header line": (ErrorKind.INVALID_REQUEST, _LINE),
    "continuation line at start of headers": (ErrorKind.INVALID_REQUEST, _LINE),
    "Illegal header": (ErrorKind.INVALID_REQUEST, _LINE),
    "illegal chunk header": (ErrorKind.INVALID_REQUEST, _CHUNK),
    "malformed chunk footer": (ErrorKind.INVALID_REQUEST, _CHUNK),
}
"""By the beginning of what h11 says."""


def parser_fault(words: str) -> ApiError:
    """The fault behind an error of h11's, by its words."""
    kind, sentence = next(
        (known for beginning, known in PARSER_FAULTS.items() if words.startswith(beginning)),
        (ErrorKind.INVALID_REQUEST, f"mend the client's HTTP/1.1 ({words[:WORDS_MAX]})"),
    )
    return ApiError(kind, f"This is no request: {sentence}.")


def version_fault(version: str) -> ApiError:
    """The fault of a request in a version of HTTP that is not spoken."""
    return ApiError(
        ErrorKind.VERSION_NOT_SPOKEN,
        f"HTTP/{version} is not spoken here: send HTTP/1.1, or put a proxy before this node.",
    )


def two_lengths_fault() -> ApiError:
    """The fault of a body with two lengths: two nodes of a chain could read it differently (RFC 9112 §6.1)."""
    return ApiError(
        ErrorKind.INVALID_REQUEST, "The body has two lengths: send Content-Length or Transfer-Encoding, not both."
    )
