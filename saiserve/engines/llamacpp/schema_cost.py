"""What a constraint costs to compile, told from its text: parts that are refused, and what is to be tried apart first. Pure.

llguidance bounds the work of each token, but not all of that before the first one: a `multipleOf` takes a state per
remainder, a counted length beside a pattern one per place, an object a rule per property and more with their number.
Measured on two vocabularies (49,000 and 262,000 tokens): 0.5 s for a `multipleOf` of 100,000, 0.7 s for a length of
50,000 beside a pattern, 0.1 s for 1,000 properties of one object.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

MULTIPLE_MAX = 100_000
"""Largest `multipleOf`, in units of its last decimal place."""
MULTIPLES_MAX = 200_000
"""All of a schema's together."""
LENGTH_MAX = 50_000
"""Largest `minLength` or `maxLength` beside a `pattern` or `format`."""
COUNT_MAX = 1_000_000
"""Largest `minItems`, `maxItems`, `minProperties` or `maxProperties`."""
PROPERTIES_MAX = 1_000
"""Of one object; beyond some 1,200 optional ones llguidance gives up at the first token."""
PROPERTIES_ALL_MAX = 5_000

LIGHT_CHARACTERS = 16_384
"""A longer text is tried apart."""
LIGHT_WEIGHT = 1_000
"""The same for a greater number, and for a greater product of counted repetitions or of multiples."""

DATA_KEYS = frozenset({"const", "enum", "default", "examples", "example"})
"""Their values are no schemas."""
LENGTHS, COUNTS = ("minLength", "maxLength"), ("minItems", "maxItems", "minProperties", "maxProperties")
TEXT_SHAPES = ("pattern", "format")

BIG_NUMBER = re.compile(r"\d{5,}|[1-9]\d{3}|\d[eE]\+?\d")
MULTIPLE = re.compile(r'"multipleOf"\s*:\s*(\d+(?:\.\d+)?)')
REPETITION = re.compile(r"\{\s*+(\d*+)\s*+(?:,\s*+(\d*+)\s*+)?\}")
"""Possessive: with long runs of blanks it would try every way to share them out."""
COMBINING = re.compile(r'"allOf"|[&~]|\\u00[2-7]')
"""Parts that must all hold: their costs may multiply. In prose these are no reason, and cost a trial all the same; so do
escaped letters, which can hide a key."""
OWN_TEXT = re.compile(r"^TEXT: /\(\?s:\.\+\)/ & ~/\(\?s:\.\*\)[^&~{}*+\n]*\(\?s:\.\*\)/$", re.MULTILINE)
"""Text without one literal, as chat/tool_grammar.py writes it for every tool set: cheap, although it combines."""


def schema_fault(schema: Any) -> str | None:
    """The part of a schema that costs too much, in a sentence; None when none does. Not nested without end."""
    multiples = properties = 0
    for path, part in _objects(schema, ""):
        own = part.get("properties")
        own_count = len(own) if isinstance(own, dict) else 0
        properties += own_count
        multiple = _multiple(part.get("multipleOf"))
        multiples += multiple
        has_shape = any(isinstance(part.get(key), str) for key in TEXT_SHAPES)
        checks = [
            ("multipleOf", multiple, MULTIPLE_MAX, "units of its last decimal place"),
            ("properties", own_count, PROPERTIES_MAX, "properties"),
            *((key, _number(part.get(key)) * has_shape, LENGTH_MAX, "beside a pattern or format") for key in LENGTHS),
            *((key, _number(part.get(key)), COUNT_MAX, "at most") for key in COUNTS),
        ]
        for key, value, most, what in checks:
            if value > most:
                return f"{path}/{key} is too large to compile: {most} {what} are possible"
    if multiples > MULTIPLES_MAX:
        return f"its multipleOf values are too large together: their sum is {multiples}; {MULTIPLES_MAX} is possible"
    if properties > PROPERTIES_ALL_MAX:
        return f"it has {properties} properties; {PROPERTIES_ALL_MAX} are possible"
    return None


def is_heavy(grammar: str) -> bool:
    """Whether a constraint's text has anything that may cost more than it looks like: most have not."""
    if len(grammar) > LIGHT_CHARACTERS:
        return True
    grammar = OWN_TEXT.sub("", grammar, count=1)
    if BIG_NUMBER.search(grammar) or COMBINING.search(grammar):
        return True
    counts = [int(most or least or 0) for least, most in REPETITION.findall(grammar)]
    multiples = [_multiple(float(one)) for one in MULTIPLE.findall(grammar)]
    return math.prod(max(1, one) for one in counts + multiples) > LIGHT_WEIGHT


def _objects(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        yield path, value
        for key, item in value.items():
            if key not in DATA_KEYS or path.endswith("/properties"):
                yield from _objects(item, f"{path}/{key}")
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _objects(item, f"{path}/{at}")


def _number(value: Any) -> float:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def _multiple(value: Any) -> int:
    """A multiple in units of its last decimal place; 0 for what is none."""
    number = _number(value)
    if not 0 < number < math.inf:
        return 0
    exact = Decimal(repr(number)).normalize()
    exponent = exact.as_tuple().exponent
    assert isinstance(exponent, int)
    return int(exact) if exponent >= 0 else int(exact.scaleb(-exponent))
