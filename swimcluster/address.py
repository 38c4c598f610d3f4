"""One address type for every transport: a host and a port, as text a person can read.

`[::1]:7946`, `10.0.0.1:7946` and `db-3.lan:7946` are parsed and written here and nowhere else.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from swimcluster.errors import ConfigError

ANY_IPV4 = ipaddress.IPv4Address(0)
HOST_LENGTH_MAX = 253
"""Longest DNS name in characters (RFC 1035 §2.3.4)."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a member listens.

    `host` is an IP literal without brackets or a DNS name, `port` is 0–65535 (0 only before binding).
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_unspecified(self) -> bool:
        """Whether nobody could connect to it as it stands: 0.0.0.0, ::, an empty host or port 0."""
        if not self.host or self.port == 0:
            return True
        try:
            found = ipaddress.ip_address(self.host)
        except ValueError:
            return not self.host.strip("0.")  # `0` and the like, which resolvers take for 0.0.0.0.
        return found.is_unspecified or (found.version == 6 and found.ipv4_mapped == ANY_IPV4)


def parse_address(text: str, *, default_port: int | None = None) -> Address:
    """Read `host:port`, `[v6]:port`, or a bare host when `default_port` is given.

    Raises:
        ConfigError: the text is not an address; the message says which part.
    """
    rest = text.strip()
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise ConfigError(f"{text!r} is not an address: write an IPv6 address as [::1]:7946")
        port_text = tail[1:]
    elif rest.count(":") > 1:
        host, port_text = rest, ""
    else:
        host, _, port_text = rest.partition(":")
    if not host or len(host) > HOST_LENGTH_MAX or any(c.isspace() or c in "/@?#" for c in host):
        raise ConfigError(f"{text!r} is not an address: the host part must be a name or an IP address")
    if not port_text:
        if default_port is None:
            raise ConfigError(f"{text!r} has no port: write host:port")
        return Address(host, default_port)
    if not (port_text.isascii() and port_text.isdigit() and int(port_text) <= 65535):
        raise ConfigError(f"{text!r} is not an address: the port must be a number from 0 to 65535")
    return Address(host, int(port_text))
