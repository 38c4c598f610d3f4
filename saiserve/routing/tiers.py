"""Tiers: named groups of models from weak to strong, and the bands that picking one makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saiserve.routing.candidate import Candidate
from saiserve.routing.slate import Slate


@dataclass(frozen=True, slots=True)
class Tier:
    """A group of models of like strength."""

    name: str
    models: tuple[str, ...]


def read_tiers(tables: Sequence[Mapping[str, Any]]) -> tuple[Tier, ...]:
    """Tiers from configuration, weakest first: `[{name, models}, …]`.

    Raises:
        ValueError: fewer than one tier, a tier without name or models, or a name or model twice.
    """
    tiers = tuple(Tier(str(table.get("name", "")), tuple(table.get("models", ()))) for table in tables)
    check_tiers(tiers)
    return tiers


def check_tiers(tiers: Sequence[Tier]) -> None:
    """Raise ValueError unless there is a tier and every name and model occurs once."""
    if not tiers or any(not tier.name or not tier.models for tier in tiers):
        raise ValueError("tiers: give at least one, each with a name and models")
    models = [model for tier in tiers for model in tier.models]
    if len({tier.name for tier in tiers}) < len(tiers) or len(set(models)) < len(models):
        raise ValueError("tiers: each name and each model may occur once")


def prefer_tier(slate: Slate, tiers: Sequence[Tier], picked: int) -> Slate:
    """Split so that the picked tier comes first, then stronger ones, then weaker ones, then models of no tier.

    The others stay as bands below: a tier that is down is stood in for, first by a stronger one.
    """
    number = {model: index for index, tier in enumerate(tiers) for model in tier.models}

    def place(candidate: Candidate) -> int:
        index = number.get(candidate.model)
        if index is None:
            return 2 * len(tiers)
        return index - picked if index >= picked else len(tiers) + picked - index

    def reason(candidate: Candidate) -> str:
        index = number.get(candidate.model)
        return "of no tier" if index is None else f"tier {tiers[index].name}"

    return slate.split(place, reason).label("tier", tiers[picked].name)
