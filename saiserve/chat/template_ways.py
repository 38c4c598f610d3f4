"""What a chat template's source tells of a model's output, small enough to travel to nodes that lack the template. Pure.

The entry node splits reasoning and reads calls; the node that has the model's file tells it how by one small number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from saiserve.chat.reasoning import template_begins_reasoning
from saiserve.chat.tool_formats import format_of_template

OPENING: Final = "<think>"
CLOSING: Final = "</think>"
"""The marks around reasoning."""
FORMAT_NUMBERS: Final = ("", "hermes", "qwen_xml", "llama3", "mistral", "json")
"""Tool formats by number, 0–31; append at the end only. A number beyond them, from a newer node, is plain JSON."""

_KNOWN: Final = 1
_BEGINS_REASONING: Final = 2
_FORMAT_SHIFT: Final = 2
_FORMAT_MASK: Final = 31


@dataclass(frozen=True, slots=True)
class TemplateWays:
    """What follows from a template that is known."""

    begins_reasoning: bool = False
    """Output begins inside the reasoning when thinking is on."""
    tool_format: str = ""
    """A name in `saiserve.chat.tool_formats.FORMATS`; empty when the template knows no tools."""

    @property
    def number(self) -> int:
        """It as a number, 1–127."""
        begins = _BEGINS_REASONING if self.begins_reasoning else 0
        return _KNOWN | begins | FORMAT_NUMBERS.index(self.tool_format) << _FORMAT_SHIFT


def ways_of(template: str, opening: str = OPENING, closing: str = CLOSING) -> TemplateWays | None:
    """What a template tells; None when there is no template."""
    if not template:
        return None
    return TemplateWays(template_begins_reasoning(template, opening, closing), format_of_template(template))


def ways_numbered(number: int) -> TemplateWays | None:
    """What another node told; None when it knows no template. Bits of newer nodes are ignored."""
    if not number & _KNOWN:
        return None
    place = number >> _FORMAT_SHIFT & _FORMAT_MASK
    tool_format = FORMAT_NUMBERS[place] if place < len(FORMAT_NUMBERS) else "json"
    return TemplateWays(bool(number & _BEGINS_REASONING), tool_format)


def tags_of_template(template: str, asked: Mapping[str, bool] | None = None) -> frozenset[str]:
    """The capability tags `reasoning` and `tools`, as far as a template tells them.

    A template that opens the reasoning, or takes it out of earlier turns or switches it off by its closing mark, is one
    of a model that reasons. `asked` is what rendering it found out (`supports_tools` and more), which outranks its words.
    """
    ways = ways_of(template)
    if ways is None:
        return frozenset()
    tools = (asked or {}).get("supports_tools", bool(ways.tool_format))
    reasons = ways.begins_reasoning or CLOSING in template
    return frozenset(({"reasoning"} if reasons else set()) | ({"tools"} if tools else set()))
