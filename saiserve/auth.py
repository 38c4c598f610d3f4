"""Who may ask for what: client keys for the API, the cluster secret for operators, nothing for probes.

Access is decided by method and path before any routing, on the same decoded path that routing sees, so that no variant
of a path reaches a handler unchecked: what is not listed as open needs a key.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from saiserve.errors import ApiError, ErrorKind, SettingsError

KEYLESS_GET = frozenset({"/health", "/v1/health", "/ready"})
"""Probes: GET and HEAD."""
KEYLESS_HEAD = frozenset({"/", "/api/hello"})
"""Reachability checks of coding agents: HEAD only; they say nothing."""
OPERATOR_PREFIXES = ("/cluster", "/admin", "/metrics")
"""Operators' routes, with the cluster secret in `X-SAI-Cluster`."""


class Access(enum.Enum):
    """What a request must show."""

    OPEN = "open"
    CLIENT = "client"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A client key and the name that stands for it in logs and accounts."""

    name: str
    secret: bytes

    def __repr__(self) -> str:
        """Show the name alone."""
        return f"ClientKey({self.name!r})"


def parse_client_keys(setting: str) -> tuple[ClientKey, ...]:
    """Read `API_KEY`: keys separated by commas, each `name:key` or a bare key, which is named by its place.

    Raises:
        SettingsError: for a name without a key.
    """
    keys: list[ClientKey] = []
    for place, entry in enumerate(filter(None, (part.strip() for part in setting.split(","))), start=1):
        before, separator, after = entry.partition(":")
        name, secret = (before.strip(), after.strip()) if separator else (f"key{place}", entry)
        if not secret:
            raise SettingsError(f"API_KEY: entry {place} has a name and no key; write `name:key`.")
        keys.append(ClientKey(name, secret.encode()))
    return tuple(keys)


def required_access(method: str, path: str) -> Access:
    """Return what a request to `path` (decoded, as routing sees it) must show."""
    if method == "OPTIONS":
        return Access.OPEN
    if path in KEYLESS_GET and method in {"GET", "HEAD"}:
        return Access.OPEN
    if path in KEYLESS_HEAD and method == "HEAD":
        return Access.OPEN
    if any(path == prefix or path.startswith(prefix + "/") for prefix in OPERATOR_PREFIXES):
        return Access.OPERATOR
    return Access.CLIENT


class Auth:
    """The keys a node accepts. Digests are compared in constant time, and every key is tried every time."""

    def __init__(self, client_keys: Sequence[ClientKey], operator_secrets: Sequence[bytes] = ()) -> None:
        self._client_keys = tuple(client_keys)
        self._operator_secrets = tuple(operator_secrets)

    def authenticate(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the name of the key that was shown; empty where none is needed.

        On a node without a cluster secret (a single box) client keys open the operators' routes too.

        Raises:
            ApiError: 401.
        """
        access = required_access(method, path)
        if access is Access.OPEN:
            return ""
        shown = list(headers)
        if access is Access.OPERATOR and self._operator_secrets:
            offered = [value for name, value in shown if name.lower() == b"x-sai-cluster"]
            if len(offered) == 1 and _any_equal(offered[0].strip(), self._operator_secrets):
                return "operator"
            raise ApiError(
                ErrorKind.UNAUTHENTICATED,
                "This route is for operators: send the cluster secret in the header X-SAI-Cluster.",
                headers=(("WWW-Authenticate", 'X-SAI-Cluster realm="operators"'),),
            )
        return self._client(shown)

    def _client(self, headers: list[tuple[bytes, bytes]]) -> str:
        offered = offered_keys(headers)
        if not offered:
            raise ApiError(
                ErrorKind.UNAUTHENTICATED, "No API key was sent: use `Authorization: Bearer KEY` or `x-api-key: KEY`."
            )
        names = {self._name_of(secret) for secret in offered}
        if len(names) == 1 and (name := names.pop()) is not None:
            return name
        raise ApiError(ErrorKind.UNAUTHENTICATED, "The API key is not known here.")

    def _name_of(self, secret: bytes) -> str | None:
        found: str | None = None
        for key in self._client_keys:
            if _equal(secret, key.secret) and found is None:
                found = key.name
        return found


def offered_keys(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return every key a request shows, as Bearer credentials (RFC 6750 §2.1) or `x-api-key`.

    A malformed `Authorization` counts as an empty key, which matches nothing: contradictory credentials are refused.
    """
    keys: list[bytes] = []
    for name, value in headers:
        lowered = name.lower()
        if lowered == b"x-api-key":
            keys.append(value.strip())
        elif lowered == b"authorization":
            scheme, _, credentials = value.strip().partition(b" ")
            keys.append(credentials.strip() if scheme.lower() == b"bearer" else b"")
    return keys


def _any_equal(offered: bytes, secrets: Sequence[bytes]) -> bool:
    matches = [_equal(offered, secret) for secret in secrets]
    return any(matches)


def _equal(offered: bytes, secret: bytes) -> bool:
    """Compare without telling by time where, or in length, they differ."""
    return hmac.compare_digest(hashlib.sha256(offered).digest(), hashlib.sha256(secret).digest())
