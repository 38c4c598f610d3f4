"""What a model's name tells of its ways, for models whose template no node that holds them has told of.

Only consulted for models that are said to know tools or to reason; a template or an explicit setting outranks it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """How a family of models writes calls, and whether its template opens the reasoning itself."""

    tool_format: str
    reasoning_begun: bool = False


_FAMILIES: tuple[tuple[tuple[str, ...], Family], ...] = (
    (("qwen3.5", "qwen3.8", "q35-", "qwen38-", "qwen3-coder"), Family("qwen_xml", reasoning_begun=True)),
    (("qwen", "hermes"), Family("hermes")),
    (("llama-3", "llama3"), Family("llama3")),
    (("mistral", "ministral", "magistral", "devstral"), Family("mistral")),
)


def family_of(names: Iterable[str]) -> Family | None:
    """Return the family one of the names belongs to."""
    folded = [name.casefold() for name in names]
    for marks, family in _FAMILIES:
        if any(mark in name for mark in marks for name in folded):
            return family
    return None
