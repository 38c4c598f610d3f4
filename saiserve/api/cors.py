"""Which web pages may use this node (Fetch standard, CORS): the origins that `CORS_ORIGINS` names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

ANY = "*"
LOCALHOST = "localhost"
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
PREFLIGHT = (
    ("Access-Control-Allow-Credentials", "true"),
    ("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"),
    ("Access-Control-Allow-Headers", "*"),
)
"""Headers of the answer to OPTIONS."""


@dataclass(frozen=True, slots=True)
class Origins:
    """The pages that may: `*` all, `localhost` those of this machine in any port, else origins as browsers write them."""

    allowed: Sequence[str] = (ANY,)

    def allow(self, origin: str) -> bool:
        """Whether a page of this origin may read answers."""
        if ANY in self.allowed or origin in self.allowed:
            return True
        return LOCALHOST in self.allowed and _host(origin) in LOCAL_HOSTS

    def headers(self, origin: str) -> list[tuple[bytes, bytes]]:
        """Return what a reply to a page of this origin says; nothing when the request names none."""
        if not origin:
            return []
        vary = [(b"vary", b"Origin")]
        return [(b"access-control-allow-origin", origin.encode("latin-1")), *vary] if self.allow(origin) else vary


def _host(origin: str) -> str:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return (parts.hostname or "") if parts.scheme in {"http", "https"} else ""
