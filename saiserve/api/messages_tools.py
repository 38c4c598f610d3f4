"""Anthropic tools: the client's own, the typed ones a client runs itself, and those only Anthropic's servers run.

A typed client tool gets the schema its documentation gives it. A server tool cannot run here: it is not shown to the
model, which is told so instead. Deferred tools are shown once a tool result has referred to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from saiserve.api.body import invalid
from saiserve.api.messages_schema import Block, MessageBody, ToolBody, ToolChoiceBody
from saiserve.api.tool_names import check_tool_name
from saiserve.chat.request import Tool, ToolChoice, ToolChoiceMode

_STRING = {"type": "string"}
_POINT = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
COMPUTER_ACTIONS = (
    "screenshot", "cursor_position", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click",
    "double_click", "triple_click", "left_mouse_down", "left_mouse_up", "scroll", "type", "key", "hold_key", "wait",
)  # fmt: skip
CLIENT_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "bash_": (
        "Run a command in a persistent bash shell.",
        {"type": "object", "properties": {"command": _STRING, "restart": {"type": "boolean"}}},
    ),
    "text_editor_": (
        "View, create and edit text files.",
        {
            "type": "object",
            "properties": {
                "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
                "path": _STRING,
                "file_text": _STRING,
                "old_str": _STRING,
                "new_str": _STRING,
                "insert_line": {"type": "integer"},
                "insert_text": _STRING,
                "view_range": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["command", "path"],
        },
    ),
    "computer_20": (
        "See the screen and use its mouse and keyboard. Coordinates are pixels from the top left.",
        {
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": list(COMPUTER_ACTIONS)},
                "coordinate": _POINT,
                "start_coordinate": _POINT,
                "text": _STRING,
                "duration": {"type": "number"},
                "scroll_direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
                "scroll_amount": {"type": "integer"},
            },
            "required": ["action"],
        },
    ),
    "memory_": (
        "Keep notes in files under /memories.",
        {
            "type": "object",
            "properties": {
                "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
                "path": _STRING,
                "file_text": _STRING,
                "old_str": _STRING,
                "new_str": _STRING,
                "insert_line": {"type": "integer"},
                "insert_text": _STRING,
                "old_path": _STRING,
                "new_path": _STRING,
            },
            "required": ["command"],
        },
    ),
}
"""Typed tools that the client executes, by the start of their type: description and input schema."""


def tools_of(bodies: list[ToolBody], changes: ToolChanges) -> tuple[Tool, ...]:
    """Return the tools shown to the model, after what the conversation changed.

    Raises:
        ApiError: 400 for a tool without a good name or a schema, and for two of one name.
    """
    tools: list[Tool] = []
    for index, body in enumerate(bodies):
        tool = _tool(body, f"tools[{index}]")
        if tool is None or (body.defer_loading and body.name not in changes.shown) or tool.name in changes.removed:
            continue
        if tool.name in {other.name for other in tools}:
            raise invalid(f"tools[{index}].name: {tool.name!r} is defined twice.", f"tools[{index}].name")
        tools.append(tool)
    return tuple(tools)


def _tool(body: ToolBody, at: str) -> Tool | None:
    if body.type == "custom":
        check_tool_name(body.name, f"{at}.name")
        if body.input_schema is None:
            raise invalid(f"{at}.input_schema: this field is required.", f"{at}.input_schema")
        return Tool(body.name, body.description, body.input_schema, strict=body.strict)
    for start, (description, schema) in CLIENT_TOOLS.items():
        if body.type.startswith(start):
            name = body.name or start.removesuffix("20").removesuffix("_")
            check_tool_name(name, f"{at}.name")
            return Tool(name, description, schema)
    return None


@dataclass(frozen=True, slots=True)
class ToolChanges:
    """What a conversation has done to its tools by its end."""

    shown: frozenset[str] = frozenset()
    """Deferred tools that results have referred to, that were added or that were called."""
    removed: frozenset[str] = frozenset()
    defined: tuple[ToolBody, ...] = ()
    """Tools that the conversation itself defines, the last of each name."""


def changes_of(messages: list[MessageBody]) -> ToolChanges:
    """Return the changes that a conversation's blocks make."""
    shown: set[str] = set()
    removed: set[str] = set()
    defined: dict[str, ToolBody] = {}
    for block in _blocks(messages):
        change = block.tool
        if block.type == "tool_use":
            shown.add(block.name)
        elif block.type == "tool_reference":
            shown.add(block.tool_name)
        elif block.type == "tool_addition" and change is not None:
            name = change.name if change.definition is None else change.definition.name
            if change.definition is not None:
                defined[name] = change.definition
            shown.add(name)
            removed.discard(name)
        elif block.type == "tool_removal" and change is not None:
            removed.add(change.name)
    return ToolChanges(frozenset(shown), frozenset(removed), tuple(defined.values()))


def _blocks(messages: list[MessageBody]) -> Iterator[Block]:
    """Yield the blocks of a conversation in order, the changes of compacted parts and references in results too."""
    for message in messages:
        for block in message.content if isinstance(message.content, list) else ():
            yield from block.tool_changes
            yield block
            content = block.content
            found = content.get("tool_references") if isinstance(content, dict) else content
            for item in found if isinstance(found, list) else []:
                if isinstance(item, dict) and item.get("type") == "tool_reference":
                    yield Block("tool_reference", tool_name=str(item.get("tool_name", "")))


def unserved_tools_note(bodies: list[ToolBody]) -> str:
    """Return a sentence for the model about server tools that cannot run here; empty when there are none."""
    unserved = [
        body.name or body.type
        for body in bodies
        if body.type != "custom" and not body.type.startswith((*CLIENT_TOOLS, "tool_search_"))
    ]
    if not unserved:
        return ""
    return f"These tools are not available on this server: {', '.join(unserved)}. If one is needed, say so."


def tool_choice_of(body: ToolChoiceBody | None, tools: tuple[Tool, ...]) -> ToolChoice:
    """Return whether tools may or must be called.

    Raises:
        ApiError: 400 for a choice that no tool fits.
    """
    if body is None:
        return ToolChoice()
    parallel = not body.disable_parallel_tool_use
    match body.type:
        case "auto":
            return ToolChoice(parallel=parallel)
        case "none":
            return ToolChoice(ToolChoiceMode.NONE, parallel=parallel)
        case "any":
            if not tools:
                raise invalid("tool_choice: any, but no usable tools were given.", "tool_choice")
            return ToolChoice(ToolChoiceMode.REQUIRED, parallel=parallel)
        case "tool":
            if body.name not in {tool.name for tool in tools}:
                raise invalid(f"tool_choice.name: {body.name[:60]!r} is not among the usable tools.", "tool_choice")
            return ToolChoice(ToolChoiceMode.NAMED, body.name, parallel=parallel)
    raise invalid(f"tool_choice.type: {body.type[:40]!r} is not one of auto, any, tool, none.", "tool_choice")
