"""Chat Completions, incoming: its tools and `tool_choice`; the parts the other dialects share are public."""

from __future__ import annotations

from typing import Any

from saiserve.api.body import invalid
from saiserve.api.chat_schema import ChatBody, CustomToolBody, FunctionBody, ToolBody, ToolChoiceBody
from saiserve.chat.request import Tool, ToolChoice, ToolChoiceMode
from saiserve.engines.messages import Constraint


def tools_of(body: ChatBody) -> tuple[Tool, ...]:
    """Return the tools of `tools`, or of the older `functions`; an empty list is none.

    Raises:
        ApiError: 400 for a kind of tool that does not exist here, and for two of one name.
    """
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools)]
    tools += [_function(function) for function in body.functions] if not tools else []
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise invalid(f"tools[{index}]: {name!r} is defined twice.", f"tools[{index}]")
    return tuple(tools)


def _tool(tool: ToolBody, at: str) -> Tool:
    if tool.type == "custom" and tool.custom is not None:
        return _free_form(tool.custom, at)
    if tool.type != "function":
        raise invalid(f"{at}.type: {tool.type[:40]!r} is not a kind of tool served here; use function.", f"{at}.type")
    if tool.function is None:
        raise invalid(f"{at}.function: this field is required.", f"{at}.function")
    return _function(tool.function)


def _free_form(custom: CustomToolBody, at: str) -> Tool:
    given = custom.format
    if given is None or given.type == "text":
        return Tool(custom.name, custom.description, FREE_FORM_PARAMETERS)
    grammar = given.grammar
    if given.type != "grammar" or grammar is None or grammar.syntax not in {"lark", "regex"} or not grammar.definition:
        raise invalid(
            f"{at}.custom.format: must be text, or a grammar with syntax (lark or regex) and definition.",
            f"{at}.custom.format",
        )
    description = f"{custom.description}\nThe input must match this {grammar.syntax} grammar:\n{grammar.definition}"
    held = Constraint(grammar.syntax, grammar.definition)
    return Tool(custom.name, description, FREE_FORM_PARAMETERS, grammar=held)


def _function(function: FunctionBody) -> Tool:
    parameters = function.parameters if function.parameters is not None else {"type": "object", "properties": {}}
    return Tool(function.name, function.description, parameters, strict=function.strict)


FREE_FORM_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""What a free-form tool looks like to a model that knows functions."""


def tool_choice_of(body: ChatBody, tools: tuple[Tool, ...]) -> ToolChoice:
    """Return whether tools may or must be called.

    Raises:
        ApiError: 400 for a choice that no tool fits.
    """
    given = body.tool_choice
    if given is None and body.function_call is not None:
        legacy = body.function_call
        given = legacy if isinstance(legacy, str) else ToolChoiceBody("function", function=legacy)
    parallel = body.parallel_tool_calls and (bool(body.tools) or not body.functions)
    if given is None:
        return ToolChoice(parallel=parallel)
    if isinstance(given, str):
        return ToolChoice(choice_mode(given, tools), parallel=parallel)
    if given.type == "allowed_tools":
        allowed = given.allowed_tools or {}
        mode = allowed.get("mode", given.mode or "auto")
        return ToolChoice(choice_mode(str(mode), tools), parallel=parallel)
    if given.type not in {"function", "custom"}:
        kinds = "function, custom, allowed_tools"
        raise invalid(f"tool_choice.type: {given.type[:40]!r} is not one of {kinds}.", "tool_choice.type")
    named = given.function if given.type == "function" else given.custom
    if named is None:
        raise invalid(f"tool_choice.{given.type}: this field is required.", f"tool_choice.{given.type}")
    return ToolChoice(ToolChoiceMode.NAMED, named_tool(named.name, tools), parallel=parallel)


def allowed_of(body: ChatBody, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Return the tools that `tool_choice: allowed_tools` leaves.

    Raises:
        ApiError: 400 for a name that is no tool's.
    """
    given = body.tool_choice
    if not isinstance(given, ToolChoiceBody) or given.type != "allowed_tools":
        return tools
    listed = (given.allowed_tools or {}).get("tools", given.tools)
    named = [one.get("function") or one.get("custom") or one for one in listed if isinstance(one, dict)]
    return narrowed(tools, [str(one.get("name", "")) for one in named if isinstance(one, dict)])


def narrowed(tools: tuple[Tool, ...], names: list[str]) -> tuple[Tool, ...]:
    """Return the tools of these names: the others are not shown to the model, so that it cannot call them.

    Raises:
        ApiError: 400 for a name that is no tool's.
    """
    for name in names:
        named_tool(name, tools)
    return tuple(tool for tool in tools if tool.name in names)


def choice_mode(text: str, tools: tuple[Tool, ...], param: str = "tool_choice") -> ToolChoiceMode:
    """Read auto, none or required.

    Raises:
        ApiError: 400 for anything else, and for required without tools.
    """
    modes = {mode.value: mode for mode in (ToolChoiceMode.AUTO, ToolChoiceMode.NONE, ToolChoiceMode.REQUIRED)}
    if text not in modes:
        raise invalid(f"{param}: {text[:40]!r} is not one of {', '.join(modes)}.", param)
    if modes[text] is ToolChoiceMode.REQUIRED and not tools:
        raise invalid(f"{param}: required, but no tools were given.", param)
    return modes[text]


def named_tool(name: str, tools: tuple[Tool, ...], param: str = "tool_choice") -> str:
    """Return `name`, which must be one of the tools'.

    Raises:
        ApiError: 400 when it is not.
    """
    if name not in {tool.name for tool in tools}:
        raise invalid(f"{param}: {name[:60]!r} is not among the tools.", param)
    return name
