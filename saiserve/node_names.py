"""Names that clients may ask for beside the members' models: routes, and models of this node's upstream targets."""

from __future__ import annotations

from collections.abc import Iterable

from saiserve.api.service import ModelCard
from saiserve.fleet.view import UpstreamModel
from saiserve.node import Node
from saiserve.routing.routes import RouteRule


def later_cards(node: Node, held: tuple[ModelCard, ...], created: int) -> tuple[ModelCard, ...]:
    """Their cards, for listings. `held` are the cards of what members hold, whose names stay theirs."""
    taken = {card.id for card in held}
    upstream = {model.model: model for model in node.upstreams.models()}
    rules = node.settings.routes.rules
    cards = [
        _upstream_card(model, created) for name, model in upstream.items() if name not in taken and name not in rules
    ]
    known = {card.id: card for card in (*held, *cards)}
    return (*cards, *(_route_card(rule, known, created) for rule in rules.values() if rule.name not in taken))


def _upstream_card(model: UpstreamModel, created: int) -> ModelCard:
    return ModelCard(
        id=model.model,
        created=created,
        context_tokens=model.context_tokens,
        capabilities=model.tags,
        state="unavailable" if model.resting else "ready",
        display_name=model.model,
        lanes=model.lanes,
        is_fitted_later=True,
        is_upstream=True,
    )


def _route_card(rule: RouteRule, known: dict[str, ModelCard], created: int) -> ModelCard:
    """A route can do what some model of it can; it promises the shortest context of those that may answer first."""
    names = rule.models or (rule.name,)
    first = [known[name] for name in names if name in known]
    every = [*first, *(known[name] for name in rule.fallbacks if name in known)]
    contexts = [card.context_tokens for card in first if card.context_tokens]
    return ModelCard(
        id=rule.name,
        created=created,
        context_tokens=min(contexts, default=0),
        capabilities=_union(card.capabilities for card in every),
        state="ready" if any(card.state == "ready" for card in every) else "unavailable",
        display_name=rule.name,
        lanes=sum(card.lanes for card in first),
        is_fitted_later=True,
    )


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)
