"""Constraints that no text can follow are refused before an answer begins, not failed in it."""

from __future__ import annotations

from typing import Any

import llguidance
import msgspec
import pytest

from saiserve.engines.llamacpp.constraint import LIMITS
from saiserve.engines.llamacpp.schema_references import endless_reference
from saiserve.engines.messages import Constraint, RefusalReason
from tests.unit.llamacpp.desk import Desk

ENDLESS: dict[str, dict[str, Any]] = {
    "itself": {"$ref": "#"},
    "itself among others": {"type": "object", "$ref": "#"},
    "each other": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "itself, all of": {"allOf": [{"type": "object"}, {"$ref": "#"}]},
    "a property's": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a~1b"}}, "required": ["a"],
                     "$defs": {"a/b": {"allOf": [{"$ref": "#/%24defs/a~1b"}]}}},
    "by place": {"allOf": [{"$ref": "#/allOf/1"}, {"$ref": "#/allOf/0"}]},
}  # fmt: skip
FINE: list[dict[str, Any]] = [
    {"type": "object", "properties": {"next": {"$ref": "#"}}},
    {"type": "array", "items": {"$ref": "#"}},
    {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    {"$defs": {"a": {"type": "null"}}, "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]},
    {"$ref": "#/$defs/missing"},
    {"const": {"$ref": 5}},
]


@pytest.mark.parametrize("schema", ENDLESS.values(), ids=ENDLESS)
def test_a_reference_to_itself_is_refused(desk: Desk, schema: dict[str, Any]) -> None:
    fault = endless_reference(schema)
    assert fault is not None
    assert "leads back to itself" in fault
    refused = desk.refusal(constraint=Constraint("json_schema", msgspec.json.encode(schema).decode()))
    assert refused.reason is RefusalReason.BAD_SCHEMA
    assert fault in refused.detail


@pytest.mark.parametrize("schema", FINE)
def test_recursion_behind_a_value_is_none(schema: dict[str, Any]) -> None:
    assert endless_reference(schema) is None


@pytest.mark.parametrize(
    "grammar",
    [
        "start: start",
        "start: a\na: b\nb: a",
        'start: start "a"',
        "start: A\nA: /a/ & /b/",
        'start: %json {"$ref": "#"}',
    ],
)
def test_a_grammar_without_a_beginning_is_refused(desk: Desk, grammar: str) -> None:
    refused = desk.refusal(constraint=Constraint("lark", grammar), max_tokens=3)
    assert refused.reason is RefusalReason.BAD_SCHEMA
    assert refused.detail.endswith("no text can follow")


def test_too_much_work_at_the_first_token_is_refused_too(desk: Desk) -> None:
    desk.worker._intake._compiler._limits = llguidance.LLParserLimits(**{**LIMITS, "step_max_items": 1})
    grammar = 'start: s\ns: s s | s s s | "a" | ""'
    refused = desk.refusal(constraint=Constraint("lark", grammar), max_tokens=3)
    assert refused.reason is RefusalReason.BAD_SCHEMA
    assert "Too many items" in refused.detail
    assert "<" not in refused.detail


def test_a_constraint_that_holds_nothing_but_the_end_is_followed(desk: Desk) -> None:
    assert desk.answer(constraint=Constraint("regex", ""), max_tokens=3)[1] == b""
