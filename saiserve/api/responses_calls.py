"""Responses input: calls and outputs of every kind of tool as the plain calls and outputs a model knows.

`CALLS` says, for each type of item, what of it was asked for and what came of it; `DROPPED` says which items say
nothing to a model, and why. Types that are not known yet are read by what they hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from saiserve.api.body import invalid
from saiserve.api.responses_schema import Item
from saiserve.chat.request import ToolCall


@dataclass(frozen=True, slots=True)
class CallRow:
    """How the items of one type are read."""

    name: str = ""
    """The tool's name; empty: the item's own."""
    asked: tuple[str, ...] = ()
    """Members that become the call's arguments."""
    came: tuple[str, ...] = ()
    """Members that are its result; without any of them the result is an item of its own, or is not told."""


CALLS: Final[dict[str, CallRow]] = {
    "function_call": CallRow(),
    "custom_tool_call": CallRow(asked=("input",)),
    "file_search_call": CallRow("file_search", ("queries",), ("results",)),
    "web_search_call": CallRow("web_search", ("action",)),
    "computer_call": CallRow("computer", ("action", "actions", "pending_safety_checks")),
    "image_generation_call": CallRow(
        "image_generation", ("action", "revised_prompt", "size", "quality", "background", "output_format"), ("error",)
    ),
    "code_interpreter_call": CallRow("code_interpreter", ("code",), ("outputs",)),
    "local_shell_call": CallRow("local_shell", ("action",)),
    "shell_call": CallRow("shell", ("action", "environment")),
    "apply_patch_call": CallRow("apply_patch", ("operation",)),
    "mcp_call": CallRow(came=("output", "error")),
    "mcp_approval_request": CallRow(),
    "program": CallRow("program", ("code",)),
}
"""Items that are calls. The bytes of an image that was made (`result`) are left out: they are no text."""

WHOLE_ARGUMENTS: Final = frozenset({"function_call", "mcp_call", "mcp_approval_request"})
"""Calls whose `arguments` are the arguments already."""

OUTPUTS: Final[dict[str, str]] = {
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "computer_call_output": "output",
    "local_shell_call_output": "output",
    "shell_call_output": "output",
    "apply_patch_call_output": "output",
    "program_output": "result",
}
"""Items that are results, and the member that says what came."""

DROPPED: Final[dict[str, str]] = {
    "compaction": "encrypted for OpenAI's servers",
    "compaction_trigger": "asks a server to compact, which none does here",
    "mcp_list_tools": "tools that only OpenAI's servers can reach",
    "tool_search_call": "a search among tools; what it found is shown as tools",
    "tool_search_output": "its tools are shown as tools",
    "additional_tools": "its tools are shown as tools",
    "configuration_update": "its effort is that of the answer",
}
"""Items that are no part of the conversation a model sees, and why."""

LOADING: Final = frozenset({"tool_search_output", "additional_tools"})
"""Items whose `tools` may be called from then on."""

_ASKED: Final = tuple(dict.fromkeys(name for row in CALLS.values() for name in row.asked))
_UNKNOWN: Final = CallRow(asked=_ASKED)


def flattened(namespace: str, name: str) -> str:
    """Return the name under which a model knows a tool of a namespace."""
    return f"{namespace}__{name}" if namespace else name


def call_of(item: Item, at: str) -> ToolCall:
    """Return the call an item is.

    Raises:
        ApiError: 400 for a function call without id, name or arguments.
    """
    row = CALLS.get(item.type, _UNKNOWN)
    call_id = item.call_id or item.id
    if item.type == "function_call" and (not item.name or item.arguments is None or not call_id):
        raise invalid(f"{at}: a function_call needs call_id, name and arguments.", at)
    name = flattened(item.namespace or item.server_label, row.name or item.name or item.type.removesuffix("_call"))
    return ToolCall(call_id, name, _arguments(item, row), item.namespace)


def _arguments(item: Item, row: CallRow) -> str:
    if item.type in WHOLE_ARGUMENTS or (row is _UNKNOWN and item.arguments is not None):
        return text_of({} if item.arguments is None else item.arguments)
    return msgspec.json.encode(members(item, row.asked)).decode()


def members(item: Item, names: tuple[str, ...]) -> dict[str, Any]:
    """Return what an item holds under these names."""
    held = {name: getattr(item, name) for name in names}
    return {name: value for name, value in held.items() if value is not None}


def result_of(item: Item) -> str | None:
    """Return the result that a call's own item holds; None when it holds none."""
    row = CALLS.get(item.type)
    came = members(item, row.came) if row is not None else {}
    if not came:
        return None
    return text_of(next(iter(came.values())) if len(came) == 1 else came)


def text_of(value: Any) -> str:
    """Return a text as it is, and JSON for anything else."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
