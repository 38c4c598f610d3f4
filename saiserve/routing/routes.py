"""Routes: client-visible names with models, fallbacks, upstream targets and a chain of their own.

A name that is no route is a model, decided by the default chain, with nothing else allowed to stand in for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from saiserve.errors import SettingsError
from saiserve.limits import ROUTES_MAX
from saiserve.routing.chain import Strategy
from saiserve.routing.default import DEFAULT_CHAIN
from saiserve.routing.registry import Registry

_KEYS = {"models", "fallbacks", "upstreams", "chain"}


@dataclass(frozen=True, slots=True)
class RouteRule:
    """What one name may use, and how it is decided. Feed the first four to `describe`."""

    name: str
    models: tuple[str, ...] = ()
    """Models that may answer; empty: the model of that name."""
    fallbacks: tuple[str, ...] = ()
    """Models that may stand in, in order, once none of `models` can serve."""
    upstreams: frozenset[str] = frozenset()
    """Upstream targets that may be used; all others never are."""
    chain: tuple[Strategy, ...] = DEFAULT_CHAIN


@dataclass(frozen=True, slots=True)
class Routes:
    """All routes by name."""

    rules: Mapping[str, RouteRule] = field(default_factory=dict)
    default_chain: tuple[Strategy, ...] = DEFAULT_CHAIN

    def rule(self, name: str) -> RouteRule:
        """The route of a name, or the plain one of a model of that name."""
        return self.rules.get(name) or RouteRule(name, chain=self.default_chain)


def read_routes(
    tables: Mapping[str, Mapping[str, Any]],
    registry: Registry,
    *,
    upstreams: Iterable[str] = (),
    default_chain: tuple[Strategy, ...] = DEFAULT_CHAIN,
) -> Routes:
    """Read `[routes.NAME]` tables: `models`, `fallbacks`, `upstreams` (lists of names) and `chain` (see registry).

    Args:
        upstreams: the upstream targets that are configured.

    Raises:
        SettingsError: an unknown key, a value of the wrong type, an upstream that is not configured, or what the
            registry raises; the message names the route.
    """
    if len(tables) > ROUTES_MAX:
        raise SettingsError(f"there are {len(tables)} routes, at most {ROUTES_MAX} are allowed")
    known = frozenset(upstreams)
    return Routes({name: _rule(name, table, registry, known) for name, table in tables.items()}, default_chain)


def _rule(name: str, table: Mapping[str, Any], registry: Registry, known: frozenset[str]) -> RouteRule:
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise SettingsError(f"route {name!r}: {unknown[0]!r} is not a key; there are {', '.join(sorted(_KEYS))}")
    targets = frozenset(_names(name, table, "upstreams"))
    missing = sorted(targets - known)
    if missing:
        raise SettingsError(f"route {name!r}: no upstream target is called {missing[0]!r}")
    chain = table.get("chain")
    if chain is not None and (not isinstance(chain, list) or not chain):
        raise SettingsError(f"route {name!r}: chain must be a list of strategies")
    try:
        strategies = DEFAULT_CHAIN if chain is None else registry.chain(chain)
    except SettingsError as error:
        raise SettingsError(f"route {name!r}: {error}") from error
    return RouteRule(name, _names(name, table, "models"), _names(name, table, "fallbacks"), targets, strategies)


def _names(route: str, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise SettingsError(f"route {route!r}: {key} must be a list of names")
    return tuple(value)
