"""What `tool_choice` allows, as a grammar for constrained decoding (llguidance's Lark, with JSON Schemas inside)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from saiserve.chat.request import Tool, ToolChoice, ToolChoiceMode
from saiserve.chat.tool_formats import ToolFormat
from saiserve.engines.messages import Constraint

_JSON_OPTIONS: dict[str, Any] = {"whitespace_pattern": r"[\x20\x0A]{0,8}", "lenient": False, "coerce_one_of": True}
"""Blanks are bounded, because a small model can go on with them for ever."""

OPENER, CLOSER = "marker0", "marker1"
"""Rules for a call's marks: the model's own tokens, or their text."""
OPENER_TOKEN, OTHER_TOKENS = "token0", "others"
"""Rules for control tokens that free text may have in it: of the opener, and all the others that a parser reads."""


def tool_constraint(
    tool_format: ToolFormat, tools: Sequence[Tool], choice: ToolChoice, answer: Constraint | None = None
) -> Constraint | None:
    """Return the constraint that enforces a choice; None when nothing is to be enforced.

    Args:
        answer: what the client wants of an answer that is not a call; with `auto` either of the two may come.
    """
    forced = choice.mode in {ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED}
    if not tools or choice.mode is ToolChoiceMode.NONE:
        return answer
    if not forced and answer is None:
        return _held_once_begun(tool_format, tools, parallel=choice.parallel)
    if choice.mode is ToolChoiceMode.NAMED:
        tools = [tool for tool in tools if tool.name == choice.name]
    alternatives = "calls" if forced else "calls | answer"
    lines = [f"start: {alternatives}", *_calls(tool_format, parallel=choice.parallel), *_objects(tool_format, tools)]
    if not forced and answer is not None:
        schema = _answer_schema(answer)
        if schema is None:
            return answer
        lines.append(f"answer: %json {_schema_text(schema)}")
    return _constraint(tool_format, lines)


def _held_once_begun(tool_format: ToolFormat, tools: Sequence[Tool], *, parallel: bool) -> Constraint | None:
    """Return free text in which a call, once its opener is written, is held to its tool; None when no tool is strict.

    Tools that are not strict are held to their names and to JSON, because nobody knows yet which one it will be.
    """
    if not tool_format.opener or not any(tool.strict or tool.grammar is not None for tool in tools):
        return None
    loose = [tool if tool.strict or tool.grammar is not None else replace(tool, parameters={}) for tool in tools]
    marked = re.escape(tool_format.opener).replace("/", r"\/")
    if tool_format.array:
        body = f'"[" object {"(sep object)*" if parallel else ""} "]"'
    else:
        body = f'"\\n" object "\\n" {CLOSER}'
    repeats = parallel and not tool_format.array
    lines = [
        f"start: (opened body){'*' if repeats else '?'} aside* TEXT?",
        f"opened: aside* (spelled | TEXT? {OPENER_TOKEN})",
        # Lazy: the lexeme ends with the first opener, where a longest match would read on.
        f"spelled[lazy]: /(?s:.*){marked}/",
        f"aside: TEXT? {OTHER_TOKENS}",
        f"TEXT: /(?s:.+)/ & ~/(?s:.*){marked}(?s:.*)/",
        f"body: {body}",
        'sep: ", "',
        *_objects(tool_format, loose),
    ]
    return _constraint(tool_format, lines)


def _constraint(tool_format: ToolFormat, lines: list[str]) -> Constraint:
    markers = (tool_format.opener, tool_format.closer)
    return Constraint("lark", "\n".join(lines) + "\n", tuple(filter(None, markers)))


def _calls(tool_format: ToolFormat, *, parallel: bool) -> list[str]:
    """Return the rules for one call, or for one and more."""
    more = {True: " (sep call)*", False: ""}[parallel]
    if tool_format.array:
        return [
            f'calls: {OPENER} "[" call{more} "]"',
            "call: object",
            'sep: ", "',
        ]
    if tool_format.opener:
        return [
            f"calls: call{more}",
            f'call: {OPENER} "\\n" object "\\n" {CLOSER}',
            'sep: "\\n"',
        ]
    return [f"calls: call{more}", "call: object", 'sep: "; "']


def _objects(tool_format: ToolFormat, tools: Sequence[Tool]) -> list[str]:
    """Return a rule per tool: its name, then arguments of its schema; each schema keeps its own root for `$ref`."""
    names = " | ".join(f"tool{place}" for place in range(len(tools)))
    rules = [f"object: {names}"]
    for place, tool in enumerate(tools):
        if tool.grammar is not None and tool.grammar.kind == "lark" and tool_format.closer:
            rules += _free_form(place, tool.name, tool.grammar.body)
            continue
        head = f'{{"name": {json.dumps(tool.name)}, "{tool_format.arguments_key}": '
        schema = _parameters(tool)
        rules += [
            f'tool{place}: {_text(head)} arguments{place} "}}"',
            f"arguments{place}: %json {_schema_text(schema)}",
        ]
    return rules


def _free_form(place: int, name: str, grammar: str) -> list[str]:
    """Return the rules of a tool whose input is text of a grammar: written as Qwen's XML, where text stands as it is."""
    head, tail = f"<function={name}>\n<parameter=input>\n", "\n</parameter>\n</function>"
    return [
        f"tool{place}: {_text(head)} input{place} {_text(tail)}",
        f"input{place}: %lark {{\n{grammar}\n}}",
    ]


def takes_objects(tool: Tool) -> bool:
    """Whether a tool's schema says that its arguments are an object, or leaves it open; no call can be other."""
    given = tool.parameters.get("type") or "object"
    return given == "object" or (isinstance(given, list) and "object" in given)


def _parameters(tool: Tool) -> dict[str, Any]:
    schema = {**tool.parameters, "type": "object"}
    if tool.grammar is None or tool.grammar.kind != "regex":
        return schema
    held = {"type": "string", "pattern": f"^(?:{tool.grammar.body})$"}
    return {**schema, "properties": {**schema.get("properties", {}), "input": held}}


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
