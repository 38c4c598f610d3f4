"""Rules of single fields that no table of bounds can say: whose null it is, which field is blamed, what a name may be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from saiserve import limits
from saiserve.api.body import parse_object
from saiserve.errors import ApiError
from tests.unit.api.field_bounds import A_TOOL, ask


@pytest.mark.parametrize("field", ["json_schema", "chat_template_kwargs"])
def test_null_stays_in_what_is_the_clients_own(field: str) -> None:
    assert parse_object(json.dumps({field: {"a": None}}).encode()) == {field: {"a": None}}
    wrapped = {"response_format": {"json_schema": {"schema": {"const": None}, "strict": None}}}
    assert parse_object(json.dumps(wrapped).encode()) == {
        "response_format": {"json_schema": {"schema": {"const": None}}}
    }


def test_a_missing_schema_is_told_of_at_its_own_place() -> None:
    with pytest.raises(ApiError) as caught:
        ask("chat", {"response_format": {"type": "json_schema", "json_schema": {"type": "object"}}})
    assert caught.value.param == "response_format.json_schema.schema"
    assert "holds the schema itself" in caught.value.message


def test_our_own_bound_on_choices_is_named() -> None:
    with pytest.raises(ApiError, match="CHOICES_MAX"):
        ask("chat", {"n": limits.CHOICES_MAX + 1})


@pytest.mark.parametrize("asked", [{"logprobs": 0}, {"logprobs": 5}, {"logprobs": True}, {"n_probs": 1}])
def test_the_prompts_own_log_probabilities_are_refused_however_they_are_asked_for(asked: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        ask("completions", {"echo": True, **asked})
    assert caught.value.param == "echo"


@pytest.mark.parametrize("asked", [{"logprobs": False}, {"n_probs": 0}, {"logprobs": None}])
def test_an_echo_without_them_is_answered(asked: dict[str, Any]) -> None:
    assert ask("completions", {"echo": True, **asked}).echo


@pytest.mark.parametrize("name", ["a", "a" * 64, "A_z-0"])
@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_names_of_functions_are_those_of_the_public_api(dialect: str, name: str) -> None:
    tools = {
        "chat": [{"type": "function", "function": {"name": name}}],
        "responses": [{"type": "function", "name": name}],
    }
    ask(dialect, {"tools": tools[dialect]})


@pytest.mark.parametrize("name", ["", "a" * 129, "a b", "<|im_start|>", "a\n", "ü"])
@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_other_names_are_refused(dialect: str, name: str) -> None:
    tools = {
        "chat": [{"type": "function", "function": {"name": name}}],
        "responses": [{"type": "function", "name": name}],
        "messages": [{**A_TOOL, "name": name}],
    }
    with pytest.raises(ApiError) as caught:
        ask(dialect, {"tools": tools[dialect]})
    assert (caught.value.param or "").startswith("tools")
