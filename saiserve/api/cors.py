"""Which web pages may use this node (Fetch standard, CORS): the origins that `CORS_ORIGINS` names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

ANY = "*"
LOCALHOST = "localhost"
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
REQUESTED_BYTES_MAX = 1_024
REQUESTED = re.compile(r"[A-Za-z0-9-]+(?:[ \t]*,[ \t]*[A-Za-z0-9-]+)*")
EXPOSED = b"x-sai-route, x-request-id, request-id, retry-after"
"""Headers of replies that pages may read, beside those that they always may."""


def preflight(requested: str) -> tuple[tuple[str, str], ...]:
    """Headers of the answer to OPTIONS; `requested` are those the page's request will have.

    They are named back: `*` never covers `Authorization`, and nothing at all beside credentials (Fetch standard, CORS).
    """
    is_list = len(requested) <= REQUESTED_BYTES_MAX and REQUESTED.fullmatch(requested) is not None
    return (
        ("Access-Control-Allow-Credentials", "true"),
        ("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"),
        ("Access-Control-Allow-Headers", requested if is_list else "*"),
    )


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
        if not self.allow(origin):
            return vary
        allowed = (b"access-control-allow-origin", origin.encode("latin-1"))
        return [allowed, (b"access-control-expose-headers", EXPOSED), *vary]


def _host(origin: str) -> str:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return ""
    return (parts.hostname or "") if parts.scheme in {"http", "https"} else ""
