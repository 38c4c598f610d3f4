"""What `tool_choice` allows, as a grammar for constrained decoding (llguidance's Lark, with JSON Schemas inside)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from saiserve.chat.request import Tool, ToolChoice, ToolChoiceMode
from saiserve.chat.tool_formats import ToolFormat
from saiserve.engines.messages import Constraint

_JSON_OPTIONS: dict[str, Any] = {"whitespace_pattern": r"[\x20\x0A]{0,8}", "lenient": False, "coerce_one_of": True}
"""Blanks are bounded, because a small model can go on with them for ever."""


def tool_constraint(
    tool_format: ToolFormat, tools: Sequence[Tool], choice: ToolChoice, answer: Constraint | None = None
) -> Constraint | None:
    """Return the constraint that enforces a choice; None when nothing is to be enforced.

    Args:
        answer: what the client wants of an answer that is not a call; with `auto` either of the two may come.
    """
    forced = choice.mode in {ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED}
    if not tools or choice.mode is ToolChoiceMode.NONE or (not forced and answer is None):
        return answer
    if choice.mode is ToolChoiceMode.NAMED:
        tools = [tool for tool in tools if tool.name == choice.name]
    alternatives = "calls" if forced else "calls | answer"
    lines = [f"start: {alternatives}", *_calls(tool_format, parallel=choice.parallel), *_objects(tool_format, tools)]
    if not forced and answer is not None:
        schema = _answer_schema(answer)
        if schema is None:
            return answer
        lines.append(f"answer: %json {_schema_text(schema)}")
    return Constraint("lark", "\n".join(lines) + "\n")


def _calls(tool_format: ToolFormat, *, parallel: bool) -> list[str]:
    """Return the rules for one call, or for one and more."""
    more = {True: " (sep call)*", False: ""}[parallel]
    if tool_format.array:
        return [
            f'calls: {_text(tool_format.opener + "[")} call{more} "]"',
            "call: object",
            'sep: ", "',
        ]
    if tool_format.opener:
        return [
            f"calls: call{more}",
            f"call: {_text(tool_format.opener + chr(10))} object {_text(chr(10) + tool_format.closer)}",
            f"sep: {_text(chr(10))}",
        ]
    return [f"calls: call{more}", "call: object", 'sep: "; "']


def _objects(tool_format: ToolFormat, tools: Sequence[Tool]) -> list[str]:
    """Return a rule per tool: its name, then arguments of its schema; each schema keeps its own root for `$ref`."""
    names = " | ".join(f"tool{place}" for place in range(len(tools)))
    rules = [f"object: {names}"]
    for place, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "{tool_format.arguments_key}": '
        schema = tool.parameters if tool.parameters.get("type") else {**tool.parameters, "type": "object"}
        rules += [
            f'tool{place}: {_text(head)} arguments{place} "}}"',
            f"arguments{place}: %json {_schema_text(schema)}",
        ]
    return rules


def _text(text: str) -> str:
    return json.dumps(text)


def _schema_text(schema: dict[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": _JSON_OPTIONS})


def _answer_schema(answer: Constraint) -> dict[str, Any] | None:
    """Return the schema of an answer that is JSON; None for other grammars, which cannot be an alternative here."""
    if answer.kind == "json_object":
        return {"type": "object"}
    if answer.kind == "json_schema":
        schema = json.loads(answer.body)
        return schema if isinstance(schema, dict) else None
    return None
