"""Capability: who can do what the request needs, and which tier of models fits it.

Three strategies: `needs` (in the default chain) looks at tags and context; `capability` picks a tier by rules over
traits and counts; `capability_by_model` asks a small model for the tier.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from saiserve.errors import ErrorKind
from saiserve.routing.ask import Ask, Keep, More, Question, Reply
from saiserve.routing.candidate import Candidate, RoutingRequest
from saiserve.routing.chain import Strategy
from saiserve.routing.decision import Refusal
from saiserve.routing.slate import Slate
from saiserve.routing.tiers import Tier, check_tiers, prefer_tier

HARD_NEEDS = {
    "vision": "look at images",
    "audio": "listen to audio",
    "embeddings": "make embeddings",
    "rerank": "rerank documents",
}
"""Traits that a model without the tag cannot serve at all; other traits only order."""
CONTEXT_MARGIN = 1.25
"""Token counts are estimates here: a context this much larger than the estimate counts as roomy."""


def needs(slate: Slate, request: RoutingRequest) -> Slate:
    """Drop who lacks a tag the request cannot do without; prefer who has the other tags and a roomy context.

    A candidate without any tags is unknown and stays. Context never drops anybody: the serving node counts exactly.
    Refuses with INVALID_REQUEST when nobody has what it takes.
    """
    for need, phrase in HARD_NEEDS.items():
        if need in request.traits:
            able = slate.keep(lambda c, need=need: not c.tags or need in c.tags, f"cannot {phrase}")  # type: ignore[misc]
            if not able.ranked:
                message = f"the model {request.model!r} cannot {phrase}: choose one that lists {need!r} in /v1/models"
                return able.refuse(Refusal(ErrorKind.INVALID_REQUEST, message))
            slate = able
    soft = request.traits - HARD_NEEDS.keys()
    if soft:
        slate = slate.split(lambda c: len(soft - c.tags) if c.tags else 0, lambda c: _lacking(c, soft))
    return slate.split(lambda c: not _is_roomy(c, request), lambda c: "" if _is_roomy(c, request) else "tight context")


needs.name = "capability"  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class TierRule:
    """Picks `tier` when all that it names holds; an empty rule always does."""

    tier: str
    traits: frozenset[str] = frozenset()
    prompt_tokens_min: int = 0
    turns_min: int = 0
    tool_calls_min: int = 0

    def fits(self, request: RoutingRequest) -> bool:
        """Whether the rule applies to a request."""
        return (
            self.traits <= request.traits
            and request.prompt_tokens >= self.prompt_tokens_min
            and request.history.turns >= self.turns_min
            and request.history.tool_calls >= self.tool_calls_min
        )


def capability(tiers: Sequence[Tier], rules: Sequence[TierRule]) -> Strategy:
    """A strategy that splits by the tier the first fitting rule picks; without one, the weakest tier.

    Raises:
        ValueError: tiers are malformed, or a rule names a tier that is not there.
    """
    check_tiers(tiers)
    number = {tier.name: index for index, tier in enumerate(tiers)}
    for rule in rules:
        if rule.tier not in number:
            raise ValueError(f"rules: no tier is called {rule.tier!r}")

    def by_rules(slate: Slate, request: RoutingRequest) -> Slate:
        picked = next((number[rule.tier] for rule in rules if rule.fits(request)), 0)
        return prefer_tier(needs(slate, request), tiers, picked)

    by_rules.name = "capability"  # type: ignore[attr-defined]
    return by_rules


def capability_by_model(
    judge: str, tiers: Sequence[Tier], *, default: str = "", instruction: str = "", deadline_s: float = 2.0
) -> Strategy:
    """A strategy that asks a judge model for the tier; on failure it takes `default` (the strongest when empty).

    The label `tier_judge` says `answered` or `failed`, so that failures are counted.

    Raises:
        ValueError: tiers are malformed or `default` is none of them.
    """
    check_tiers(tiers)
    names = [tier.name for tier in tiers]
    if default and default not in names:
        raise ValueError(f"default: no tier is called {default!r}")
    fallback = names.index(default) if default else len(names) - 1
    question = Question(
        model=judge,
        instruction=instruction or f"Which model tier, weakest first of {', '.join(names)}, can solve this task?",
        schema={
            "type": "object",
            "properties": {"tier": {"enum": names}},
            "required": ["tier"],
            "additionalProperties": False,
        },
        deadline_s=deadline_s,
    )

    def by_model(slate: Slate, request: RoutingRequest) -> Slate | Ask:
        able = needs(slate, request)
        if not able.ranked or len({c.model for c in able.candidates}) < 2:
            return able
        if_failed = prefer_tier(able, tiers, fallback).label("tier_judge", "failed")

        def read(reply: Reply) -> Keep | More | Slate:
            picked = _named_tier(reply.text, names)
            return if_failed if picked is None else prefer_tier(able, tiers, picked).label("tier_judge", "answered")

        return Ask(able, question, read, if_failed)

    by_model.name = "capability_by_model"  # type: ignore[attr-defined]
    return by_model


def _named_tier(text: str, names: Sequence[str]) -> int | None:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return None
    name = answer.get("tier") if isinstance(answer, dict) else None
    return names.index(name) if isinstance(name, str) and name in names else None


def _lacking(candidate: Candidate, wanted: frozenset[str]) -> str:
    lacking = sorted(wanted - candidate.tags) if candidate.tags else []
    return f"without {', '.join(lacking)}" if lacking else ""


def _is_roomy(candidate: Candidate, request: RoutingRequest) -> bool:
    return not candidate.context_tokens or candidate.context_tokens >= request.prompt_tokens * CONTEXT_MARGIN
