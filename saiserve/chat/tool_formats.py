"""How families of models write tool calls, and how a model that knows none is taught one.

One row per family. A format without an opener is recognised only when the whole text is a call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from saiserve.chat.request import Message, Role, TextPart, Tool, ToolCall


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write calls as text.

    `opener` begins a call (or, with `array`, the array of all calls) and `closer` ends it; `arguments_key` is the key
    the family uses, though both `arguments` and `parameters` are read.
    """

    name: str
    opener: str = ""
    closer: str = ""
    arguments_key: str = "arguments"
    array: bool = False


FORMATS: dict[str, ToolFormat] = {
    entry.name: entry
    for entry in (
        ToolFormat("hermes", "<tool_call>", "</tool_call>"),
        ToolFormat("qwen_xml", "<tool_call>", "</tool_call>"),
        ToolFormat("llama3", arguments_key="parameters"),
        ToolFormat("mistral", "[TOOL_CALLS]", array=True),
        ToolFormat("json"),
    )
}
"""Qwen and Hermes; Qwen's XML; Llama 3 (optionally after `<|python_tag|>`); Mistral; Gemma and anything else."""

GENERIC = FORMATS["hermes"]
"""What models without tools in their template are taught."""


def format_named(name: str) -> ToolFormat:
    """Return a format by name; unknown names are plain JSON."""
    return FORMATS.get(name, FORMATS["json"])


_TEMPLATE_MARKS = (
    ("<function=", "qwen_xml"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3"),
    ("ipython", "llama3"),
)


def format_of_template(template: str) -> str:
    """Return the name of the format a chat template writes calls in; empty when it knows no tools."""
    if "tools" not in template:
        return ""
    return next((name for mark, name in _TEMPLATE_MARKS if mark in template), "json")


def with_tools_as_text(messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
    """Return the conversation for a template without tools: definitions, calls and results become text.

    The definitions join the first system message, so that the head of the prompt is the same on every turn.
    """
    told = [_as_text(message) for message in messages]
    if not tools:
        return tuple(told)
    text = _definitions(tools)
    if told and told[0].role is Role.SYSTEM:
        told[0] = replace(told[0], parts=(*told[0].parts, TextPart("\n\n" + text)))
    else:
        told.insert(0, Message(Role.SYSTEM, (TextPart(text),)))
    return tuple(told)


def _definitions(tools: Sequence[Tool]) -> str:
    lines = [
        json.dumps({"name": tool.name, "description": tool.description, "parameters": tool.parameters})
        for tool in tools
    ]
    example = json.dumps({"name": "NAME", "arguments": {}})
    return (
        "You may call these functions, given as JSON with a JSON Schema for their parameters:\n"
        + "\n".join(lines)
        + f"\nTo call one, write exactly:\n{GENERIC.opener}\n{example}\n{GENERIC.closer}"
    )


def _as_text(message: Message) -> Message:
    if message.role is Role.TOOL:
        parts = (TextPart("<tool_response>\n"), *message.parts, TextPart("\n</tool_response>"))
        return Message(Role.USER, parts)
    if message.tool_calls:
        calls = "\n".join(call_as_text(call) for call in message.tool_calls)
        parts = (*message.parts, TextPart(("\n" if message.text else "") + calls))
        return replace(message, parts=parts, tool_calls=())
    return message


def call_as_text(call: ToolCall) -> str:
    """Return a call as the generic format writes it."""
    name = json.dumps(call.name)
    return f'{GENERIC.opener}\n{{"name": {name}, "arguments": {call.arguments or "{}"}}}\n{GENERIC.closer}'
