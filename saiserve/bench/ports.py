"""Ports for processes that are told where to listen before they do."""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from pathlib import Path

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST = 10_000
"""Below it are the ports of services."""
LEAST = 1_000
"""Ports between the services' and the system's own that are enough to choose from."""
TRIES = 100
HELD_MAX = 64
"""Ports that are kept from other processes at once, a descriptor each; who was told an older one listens there by now."""
_given: set[int] = set()
"""Those that were drawn, as many as there are ports: who was told one may not listen there yet."""
_held: deque[int] = deque()


def free_port() -> int:
    """A port that is free for TCP and UDP, and that nobody is given who does not ask for it by number.

    What the system gives for port 0 it gives to others too, and to each outgoing connection, before the process that is
    told the number listens there. So one is drawn from those that the system never gives, each once, and none that another
    process drew.
    """
    least = _ephemeral_from()
    for _ in range(TRIES if least - FIRST >= LEAST else 0):
        port = random.randrange(FIRST, least)
        if port not in _given and _is_free(port) and _is_held(port):
            _given.add(port)
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ephemeral_from() -> int:
    """The first port the system gives by itself; 0 where it does not say."""
    try:
        return int(EPHEMERAL.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _is_free(port: int) -> bool:
    try:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_INET, kind) as probe:
                probe.bind(("", port))
    except OSError:
        return False
    return True


def _is_held(port: int) -> bool:
    """Whether the port is this process's now: a name in the kernel that one socket may have and that ends with it."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(f"\0saiserve free port {port}")
    except OSError:
        holder.close()
        return False
    _held.append(holder.detach())
    if len(_held) > HELD_MAX:
        os.close(_held.popleft())
    return True
