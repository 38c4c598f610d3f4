"""From an address as written to addresses one can send to. Names are looked up anew, never for good.

A seed such as `db.internal` may gain, lose and move its hosts for years while this process runs, so an exchange
asks the resolver each time; datagrams, which are many, keep an answer for a short while.
"""

from __future__ import annotations

import functools
import ipaddress
import socket

import trio

from swimcluster.address import Address
from swimcluster.errors import ExchangeError

RESOLVE_DEADLINE_S = 5.0
"""Longest wait for the resolver."""
KEPT_S = 30.0
"""How long the answer for a name serves datagrams."""
KEPT_NAMES_MAX = 1024
ANSWERS_MAX = 16
"""Addresses taken from one answer."""


@functools.lru_cache(maxsize=4096)
def is_literal(host: str) -> bool:
    """Whether `host` is an IP address and needs no resolver; a zone (`fe80::1%eth0`) is allowed."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def resolve(address: Address) -> tuple[Address, ...]:
    """Return the IP addresses behind `address`, at least one, in the resolver's order.

    Raises:
        ExchangeError: the name is unknown or the resolver did not answer in time.
    """
    if is_literal(address.host):
        return (address,)
    try:
        with trio.fail_after(RESOLVE_DEADLINE_S):
            answers = await trio.socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except trio.TooSlowError:
        raise ExchangeError(f"resolving {address.host!r} took more than {RESOLVE_DEADLINE_S:g} s") from None
    except (OSError, ValueError, OverflowError) as error:
        raise ExchangeError(f"{address.host!r} cannot be resolved: {error}") from error
    found = dict.fromkeys(Address(str(answer[4][0]), address.port) for answer in answers)
    if not found:
        raise ExchangeError(f"{address.host!r} has no address")
    return tuple(found)[:ANSWERS_MAX]


class ShortMemory:
    """Remembers answers for `KEPT_S`, and at most `KEPT_NAMES_MAX` of them."""

    def __init__(self) -> None:
        self._answers: dict[Address, tuple[float, tuple[Address, ...]]] = {}

    def recall(self, address: Address) -> tuple[Address, ...] | None:
        """Return the addresses behind a literal or a name asked for lately, without waiting; None otherwise."""
        if is_literal(address.host):
            return (address,)
        kept = self._answers.get(address)
        if kept is None or kept[0] < trio.current_time():
            return None
        return kept[1]

    async def resolve(self, address: Address) -> tuple[Address, ...]:
        """Return the addresses behind `address`, asking only when the memory is empty or old.

        Raises:
            ExchangeError: as `resolve`.
        """
        known = self.recall(address)
        if known is not None:
            return known
        found = await resolve(address)
        if len(self._answers) >= KEPT_NAMES_MAX:
            del self._answers[next(iter(self._answers))]
        self._answers[address] = (trio.current_time() + KEPT_S, found)
        return found
