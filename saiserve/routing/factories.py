"""The built-in strategies as entry points: factories that take configuration values and return strategies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from saiserve.routing.cache_aware import cache_aware
from saiserve.routing.capability import TierRule, needs
from saiserve.routing.capability import capability as _capability
from saiserve.routing.capability import capability_by_model as _capability_by_model
from saiserve.routing.chain import Strategy
from saiserve.routing.cost import cost_profile
from saiserve.routing.escalation import Signals, confident
from saiserve.routing.escalation import escalate_on_answer as _escalate_on_answer
from saiserve.routing.escalation import escalate_on_signals as _escalate_on_signals
from saiserve.routing.load_aware import load_aware
from saiserve.routing.model_aware import model_aware
from saiserve.routing.split import split_traffic
from saiserve.routing.tiers import read_tiers

Table = Mapping[str, Any]


def model() -> Strategy:
    """`model`: who can serve the model, resident before loadable."""
    return model_aware


def capability() -> Strategy:
    """`capability`: who has what the request needs."""
    return needs


def capability_by_rules(*, tiers: Sequence[Table], rules: Sequence[Table] = ()) -> Strategy:
    """`capability_by_rules`: the tier the first fitting rule picks. A rule's keys are those of `TierRule`."""
    return _capability(
        read_tiers(tiers), [TierRule(**{**rule, "traits": frozenset(rule.get("traits", ()))}) for rule in rules]
    )


def capability_by_model(*, judge: str, tiers: Sequence[Table], **options: Any) -> Strategy:
    """`capability_by_model`: the tier a judge model names; options `default`, `instruction`, `deadline_s`."""
    return _capability_by_model(judge, read_tiers(tiers), **options)


def escalate_on_signals(*, tiers: Sequence[Table], signals: Sequence[Table] = ({},)) -> Strategy:
    """`escalate_on_signals`: a stronger tier once the history shows tool use, tool errors, turns or length."""
    return _escalate_on_signals(read_tiers(tiers), [Signals(**entry) for entry in signals])


def escalate_on_answer(*, tiers: Sequence[Table], draft_tokens: int = 48, logprob_min: float = -1.5) -> Strategy:
    """`escalate_on_answer`: a held draft of the weakest tier, kept while the model is sure of it."""
    return _escalate_on_answer(read_tiers(tiers), verdict=confident(logprob_min), draft_tokens=draft_tokens)


def split(*, arms: Mapping[str, float], experiment: str = "split") -> Strategy:
    """`split`: shares of the conversations by weight."""
    return split_traffic(arms, experiment=experiment)


def cost(*, ceiling: float = math.inf, classes: Sequence[float] = (0.0,), answer_tokens: int = 1_000) -> Strategy:
    """`cost`: a ceiling for one request and price classes."""
    return cost_profile(ceiling=ceiling, classes=classes, answer_tokens=answer_tokens)


def load() -> Strategy:
    """`load`: who is clearly busier goes one band down."""
    return load_aware


def cache() -> Strategy:
    """`cache`: soonest first token, conversations stay where they are."""
    return cache_aware
