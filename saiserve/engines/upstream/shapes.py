"""Values of a target's JSON as what they should be, whatever they are. Pure."""

from __future__ import annotations

from typing import Any


def text_of(value: Any) -> str:
    """Text, or the texts of content parts; empty for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(text_of(part.get("text")) for part in value if isinstance(part, dict))
    return ""


def count_of(value: Any) -> int:
    """A count, 0 for anything that is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def number_of(value: Any) -> float:
    """A number, 0 for anything that is none."""
    return float(value) if isinstance(value, (int, float)) else 0.0


def table_of(value: Any) -> dict[str, Any]:
    """An object, empty for anything that is none."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """An array, empty for anything that is none."""
    return value if isinstance(value, list) else []
