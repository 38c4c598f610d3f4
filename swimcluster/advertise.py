"""Which address to tell others when a member listens on every interface: the one this host would talk to them from."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from swimcluster.address import Address
from swimcluster.transport.resolve import is_literal

ANYWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Documentation addresses (RFC 5737, RFC 3849): only the route to them is asked for, nothing is sent."""
LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


def advertised_address(bound: Address, seeds: Sequence[Address] = ()) -> Address:
    """Return `bound`, or with an unspecified host a routable one of this machine with the same port.

    The route to a literal seed is asked first, then the default routes; a host without any gets loopback.
    """
    if not bound.is_unspecified:
        return bound
    for target in [seed.host for seed in seeds if is_literal(seed.host)] + list(ANYWHERE.values()):
        family = socket.AF_INET6 if ":" in target else socket.AF_INET
        if family == socket.AF_INET6 and bound.host == "0.0.0.0":  # noqa: S104 - compared, not bound
            continue
        host = _source_towards(family, target)
        if host is not None:
            return Address(host, bound.port)
    return Address(LOOPBACK[socket.AF_INET], bound.port)


def _source_towards(family: socket.AddressFamily, target: str) -> str | None:
    """Return the local address the kernel would use towards `target`; connecting a datagram socket sends nothing."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((target, 9))
            host = str(sock.getsockname()[0])
    except OSError:
        return None
    return None if Address(host, 9).is_unspecified else host
