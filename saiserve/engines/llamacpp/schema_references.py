"""References of a JSON Schema that lead back to themselves before they say anything. Pure.

`{"$ref": "#"}` is satisfied by nothing that could be written first: llguidance compiles it to a grammar without texts, and
an answer held to it ends in the middle. A reference behind a property or an item is recursion, and fine.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

HOPS_MAX = 10_000
"""References followed in one schema; more are not told apart from endless ones."""


def endless_reference(schema: dict[str, Any]) -> str | None:
    """What is wrong with a schema's references, in a sentence; None when nothing is. Not nested without end."""
    finished: set[int] = set()
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += part.values()
            circle = _circle(schema, part, finished)
            if circle is not None:
                return f"its reference {circle!r} leads back to itself, so that no value can follow it"
        elif isinstance(part, list):
            waiting += part
    return None


def _circle(schema: dict[str, Any], start: dict[str, Any], finished: set[int]) -> str | None:
    """The reference that closes a circle of parts which must all hold at one place; depth first."""
    open_parts: set[int] = set()
    steps: list[tuple[Any, str, bool]] = [(start, "", False)]
    for _ in range(HOPS_MAX):
        if not steps:
            return None
        part, reference, is_done = steps.pop()
        if is_done:
            open_parts.discard(id(part))
            finished.add(id(part))
        elif id(part) in open_parts:
            return reference
        elif isinstance(part, dict) and id(part) not in finished:
            open_parts.add(id(part))
            steps.append((part, reference, True))
            steps += [(next_part, through or reference, False) for next_part, through in _held_with(schema, part)]
    return "$ref"


def _held_with(schema: dict[str, Any], part: dict[str, Any]) -> list[tuple[Any, str]]:
    """Parts that hold wherever this one does, each with the reference that leads there."""
    held: list[tuple[Any, str]] = []
    reference, together = part.get("$ref"), part.get("allOf")
    if isinstance(reference, str) and reference.startswith("#"):
        held.append((_target(schema, reference), reference))
    if isinstance(together, list):
        held += [(one, "") for one in together]
    return held


def _target(schema: dict[str, Any], reference: str) -> Any:
    """What a local JSON pointer (RFC 6901) names; None for what is not there, which llguidance refuses."""
    found: Any = schema
    for token in unquote(reference.removeprefix("#")).split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isascii() and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
