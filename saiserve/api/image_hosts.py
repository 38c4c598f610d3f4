"""Which addresses images may be fetched from: the operator's list, and never the inside of a network by accident."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

ANY: Final = "*"
"""Every host whose addresses are public."""
HOST: Final = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,251}[a-z0-9])?|[0-9a-f:.]*:[0-9a-f:.]*")
URL_CHARACTERS_MAX: Final = 4_096
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""What IANA gives out of IPv6; the library counts some of the rest as public, such as old site-local addresses."""
_SIGNATURES: Final[tuple[tuple[bytes, int, str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF87a", 0, "image/gif"),
    (b"GIF89a", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a URL leads."""

    scheme: str
    host: str
    """In lower case, without the brackets of an IPv6 address."""
    port: int


@dataclass(frozen=True, slots=True)
class ImageHosts:
    """The hosts an operator lists."""

    names: tuple[str, ...] = ()

    def allows(self, place: Place) -> bool:
        """Whether the host may be asked at all."""
        return ANY in self.names or place.host in self.names

    def allows_address(self, place: Place, address: str) -> bool:
        """Whether one of the host's addresses may be asked: any, when the host itself is listed; else public ones."""
        return place.host in self.names or is_public(address)


def place_of(url: str) -> Place | None:
    """Return where a URL leads; None when it is no plain http or https URL."""
    if len(url) > URL_CHARACTERS_MAX or not url.isascii() or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    host = (parts.hostname or "").rstrip(".")
    is_plain = parts.scheme in {"http", "https"} and "@" not in parts.netloc and "\\" not in url
    if not is_plain or not HOST.fullmatch(host):
        return None
    return Place(parts.scheme, host, port if port is not None else 443 if parts.scheme == "https" else 80)


def is_host(name: str) -> bool:
    """Whether a name or an IP address, in lower case and without brackets, is one a URL may have."""
    place = place_of(f"http://[{name}]" if ":" in name else f"http://{name}")
    return place is not None and place.host == name


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet, an address inside an IPv6 one counting as itself."""
    try:
        given = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(given, ipaddress.IPv6Address):
        inner = given.ipv4_mapped or given.sixtofour or (given.teredo[1] if given.teredo else None)
        if given in _NAT64:
            inner = ipaddress.IPv4Address(int(given) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(str(inner))
        if given not in _UNICAST:
            return False
    return given.is_global and not given.is_multicast


def media_type_of(data: bytes) -> str:
    """Return what the first bytes say an image is; empty when they are none that is read here."""
    for signature, start, media_type in _SIGNATURES:
        if data[start : start + len(signature)] == signature and (start == 0 or data[:4] == b"RIFF"):
            return media_type
    return ""
