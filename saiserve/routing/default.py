"""The chain used where nobody configured one: correctness, then balance, then efficiency."""

from __future__ import annotations

from saiserve.routing.cache_aware import cache_aware
from saiserve.routing.capability import needs
from saiserve.routing.chain import Strategy
from saiserve.routing.load_aware import load_aware
from saiserve.routing.model_aware import model_aware

DEFAULT_CHAIN: tuple[Strategy, ...] = (model_aware, needs, load_aware, cache_aware)
