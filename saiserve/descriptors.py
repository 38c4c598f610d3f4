"""How many files and sockets this process may have open, and how many of them connections may take.

A process without one left cannot read what the machine does, start an engine or save its state, so that strangers who only
connect must not take the last.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

WANTED: Final = 65_536
"""Open at once at most, where the system allows it: what programs start with is often 1,024."""
KEPT: Final = 128
"""Kept for everything but connections; with few in all, half of them."""


def raise_limit() -> int:
    """Raise this process's limit as far as the system allows, to `WANTED` at most; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return WANTED if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("only %d files can be open at once, and that could not be raised: %s", soft, error)
        return soft
    return wanted


def connections_max(limit: int) -> int:
    """Connections that may be open at once under a limit of so many descriptors."""
    return max(1, limit - min(KEPT, limit // 2))
