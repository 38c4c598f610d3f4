"""Constraints that would compile for minutes are refused in seconds, and their part is named; ordinary ones are not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saiserve.chat.request import Tool, ToolChoice
from saiserve.chat.tool_formats import FORMATS
from saiserve.chat.tool_grammar import tool_constraint
from saiserve.engines.llamacpp import compile_trial
from saiserve.engines.llamacpp.compile_trial import CompileTrial
from saiserve.engines.llamacpp.constraint import LIMITS, ConstraintCompiler, ConstraintError
from saiserve.engines.llamacpp.schema_cost import PROPERTIES_MAX, is_heavy, schema_fault
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.llamacpp.weights import LlamaModel
from saiserve.engines.messages import Constraint
from tests.unit.llamacpp.desk import Desk


def properties(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(count)}}


@pytest.fixture(scope="module")
def compiler(tiny: Callable[[str], Path]) -> ConstraintCompiler:
    model = LlamaModel(tiny("llama"))
    return ConstraintCompiler(Vocabulary(model.vocab), model.vocab)


@pytest.mark.parametrize(
    ("schema", "part"),
    [
        ({"type": "integer", "multipleOf": 999983}, "/multipleOf"),
        ({"type": "integer", "multipleOf": 9999991}, "/multipleOf"),
        ({"type": "number", "multipleOf": 0.0999983}, "/multipleOf"),
        ({"type": "number", "multipleOf": 1e300}, "/multipleOf"),
        ({"properties": {"a": {"items": {"multipleOf": 999983}}}}, "/properties/a/items/multipleOf"),
        ({"properties": {"const": {"multipleOf": 999983}}}, "/properties/const/multipleOf"),
        ({"anyOf": [{"multipleOf": 99991 - at} for at in range(3)]}, "multipleOf values"),
        ({"pattern": "\u0000", "maxLength": 1_000_000}, "/maxLength"),
        ({"format": "date", "minLength": 1_000_000}, "/minLength"),
        ({"type": "array", "minItems": 10**9}, "/minItems"),
        (properties(6_000), "/properties"),
        ({"anyOf": [properties(900)] * 6}, "5400 properties"),
    ],
)
def test_a_part_that_costs_too_much_is_named(compiler: ConstraintCompiler, schema: dict[str, Any], part: str) -> None:
    began = time.process_time()
    with pytest.raises(ConstraintError, match=part):
        compiler.compile(Constraint("json_schema", json.dumps(schema)), ())
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "schema",
    [
        {"const": {"multipleOf": 999983}},
        {"properties": {"multipleOf": {"type": "integer"}, "maxLength": {"type": "integer"}}},
        {"type": "string", "maxLength": 10**9},
        {"type": "number", "multipleOf": 0.01},
        properties(PROPERTIES_MAX),
    ],
)
def test_what_only_looks_costly_is_compiled(compiler: ConstraintCompiler, schema: dict[str, Any]) -> None:
    assert schema_fault(schema) is None
    compiler.compile(Constraint("json_schema", json.dumps(schema)), ()).forbidden()


LARGE_TOGETHER = {"allOf": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}]}


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("json_schema", json.dumps(LARGE_TOGETHER)),
        Constraint("lark", f"start: %json {json.dumps(LARGE_TOGETHER)}"),
        Constraint("lark", 'start: %json {"type": "integer", "multipleOf": 9999991}'),
        Constraint("lark", 'start: %json {"pattern": "\\u0000", "maxLength": 1000000}'),
        Constraint("lark", f"start: token0 %json {json.dumps(properties(9_000))}\n", ("<|im_end|>",)),
    ],
    ids=["allOf", "lark-allOf", "lark-multipleOf", "lark-maxLength", "lark-properties"],
)
def test_what_is_large_together_is_found_by_trying_it_apart(
    compiler: ConstraintCompiler, constraint: Constraint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_trial, "CPU_S", 1)
    began = time.process_time()
    for _ in range(2):  # the second time from memory
        with pytest.raises(ConstraintError, match="compiling it takes more than"):
            compiler.compile(constraint, ())
    assert time.process_time() - began < 0.5


def test_light_constraints_do_not_wait_for_heavy_ones(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go = threading.Event()
    monkeypatch.setattr(CompileTrial, "fault", lambda *_: may_go.wait(30) and "too large")
    heavy = desk.ask(constraint=Constraint("regex", "[0-9]{2000}"))
    assert desk.answer(constraint=Constraint("regex", "[0-9]{20}"))[2].completion_tokens == 20
    assert heavy not in desk.said
    may_go.set()
    desk.finish(heavy)
    assert desk.said[heavy][0].detail == "the regex cannot be enforced: too large"


def test_a_trial_ends_on_the_clock_too_and_that_is_not_held_against_the_constraint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial = CompileTrial(LIMITS)
    with monkeypatch.context() as busy:
        busy.setattr(compile_trial, "WALL_S", 0.01)
        assert "send it again" in (trial.fault("start: /a/") or "")
    assert trial.fault("start: /a/") is None


@pytest.mark.parametrize(
    "text", ["{" + " " * 8_000 + "," + " " * 8_000 + "x", "{" * 16_000, "{" + "1" * 4 + " " * 16_000]
)
def test_weighing_a_text_is_linear(text: str) -> None:
    began = time.process_time()
    is_heavy(text[:16_384])
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize(
    "grammar",
    ['{"\\u0061llOf": []}', '{"multiple\\u004ff": 97}', '{"multipleOf": 9e4}', "start: A & B", '{"allOf": []}'],
)
def test_what_may_multiply_is_heavy_however_it_is_spelled(grammar: str) -> None:
    assert is_heavy(grammar)


@pytest.mark.parametrize("style", ["hermes", "mistral"])
def test_our_own_grammar_of_strict_tools_is_light_and_a_clients_like_it_is_not(style: str) -> None:
    tool = Tool(name="look", description="", parameters={"type": "object", "properties": {}}, strict=True)
    constraint = tool_constraint(FORMATS[style], [tool], ToolChoice())
    assert constraint is not None
    assert " & ~" in constraint.body
    assert not is_heavy(constraint.body)
    assert is_heavy(constraint.body.replace("~/(?s:.*)", "~/(?s:.*)(a|b)*a", 1))
    assert is_heavy(constraint.body + "OTHER: /a+/ & ~/aa/\n")


def test_a_trial_says_nothing_of_faults_that_are_cheap() -> None:
    trial = CompileTrial(LIMITS)
    assert trial.fault("start: <[70000]> /[a-z]{1,2000}/") is None
    assert trial.fault("start: gone") is None


@pytest.mark.parametrize(
    ("text", "heavy"),
    [
        ('{"type": "object", "properties": {"a": {"type": "string", "maxLength": 200}}}', False),
        (r'{"pattern": "^\\d{4}-\\d{2}-\\d{2}$"}', False),
        ('{"multipleOf": 5, "items": {"multipleOf": 0.01}}', False),
        ('{"$ref": "#/$defs/a", "anyOf": []}', False),
        ('{"allOf": []}', True),
        ('{"multipleOf": 997, "items": {"multipleOf": 2}}', True),
        ('{"multipleOf": 0.997, "items": {"multipleOf": 2}}', True),
        ("(a{1,90}){1,90}", True),
        ('{"maxLength": 1000}', True),
        ("start: A & B", True),
        ("x" * 20_000, True),
    ],
)
def test_only_what_may_be_heavy_is_tried_apart(text: str, heavy: bool) -> None:
    assert is_heavy(text) is heavy


PARTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["multipleOf", "pattern", "maxLength", "properties", "const", "x"]), inner)
    ),
    max_leaves=30,
)


@given(PARTS)
def test_any_json_has_a_cost(value: Any) -> None:
    schema_fault(value)
    is_heavy(json.dumps(value))
