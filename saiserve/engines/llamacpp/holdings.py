"""What an engine holds of past prompts, in numbers for people and routing: never text, token ids or whose they are. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from saiserve.engines.llamacpp.job import HeldPrefix
from saiserve.engines.llamacpp.protocol import Holdings, LongPrefix, TierHoldings
from saiserve.engines.waits import NS

LONGEST_MAX = 16
"""Prefixes told one by one."""
TIERS = ("running", "idle", "host")


def summarise(prefixes: Iterable[HeldPrefix], now: int) -> Holdings:
    """Totals by place, and the longest prefixes with their age at `now` in seconds."""
    held = list(prefixes)
    longest = heapq.nlargest(LONGEST_MAX, held, key=lambda prefix: (prefix.tokens, prefix.used_at))
    return Holdings(
        **{tier: _total([prefix for prefix in held if prefix.where == tier]) for tier in TIERS},
        longest=tuple(LongPrefix(prefix.tokens, prefix.where, max(0, now - prefix.used_at) / NS) for prefix in longest),
    )


def _total(prefixes: list[HeldPrefix]) -> TierHoldings:
    return TierHoldings(
        len(prefixes),
        sum(prefix.tokens - prefix.begins_at for prefix in prefixes),
        sum(prefix.size_bytes for prefix in prefixes),
    )
