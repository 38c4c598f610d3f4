"""Responses tools: functions, free-form (custom) tools, namespaces of functions, and hosted tools that cannot run here.

A model knows one flat list of functions. What it calls comes back to the client in the client's own terms: a custom
tool's text input, a namespaced tool's bare name beside its namespace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from saiserve import limits
from saiserve.api.body import invalid, validate
from saiserve.api.chat_tools import FREE_FORM_PARAMETERS, choice_mode, named_tool, narrowed
from saiserve.api.responses_calls import LOADING, flattened
from saiserve.api.responses_schema import Grammar, Item, ToolBody, ToolChoiceBody
from saiserve.api.tool_names import check_tool_name
from saiserve.chat.request import Tool, ToolChoice, ToolChoiceMode
from saiserve.engines.messages import Constraint

SERVER_KEPT = frozenset({"tool_search", "programmatic_tool_calling"})
"""Tools that only steer OpenAI's servers: left out without a word to the model."""


@dataclass(frozen=True, slots=True)
class ToolSet:
    """The tools of one request."""

    tools: tuple[Tool, ...] = ()
    """What the model may call, by flat name."""
    custom: frozenset[str] = frozenset()
    """Flat names of free-form tools."""
    unserved: tuple[str, ...] = ()
    """Hosted tools the model is told it does not have."""
    hosted: frozenset[str] = frozenset()
    """Types of all tools that cannot run here."""


def tool_set(bodies: list[ToolBody], given: str | list[Item] | None = None) -> ToolSet:
    """Return the tools the model is shown, and what became of the rest; `given` is the input, whose items may add some.

    Raises:
        ApiError: 400 for a tool without a name, and for two of one name.
    """
    gathered = _Gathered()
    for index, body in enumerate(bodies):
        gathered.add(body, f"tools[{index}]", "")
    names = [tool.name for tool in gathered.tools]
    for name in names:
        if names.count(name) > 1:
            raise invalid(f"tools: {name!r} is defined twice.", "tools")
    gathered.load(given if isinstance(given, list) else [])
    custom = frozenset(tool.name for tool in gathered.tools if tool.parameters is FREE_FORM_PARAMETERS)
    return ToolSet(tuple(gathered.tools), custom, tuple(gathered.unserved), frozenset(gathered.hosted))


@dataclass(slots=True)
class _Gathered:
    tools: list[Tool] = field(default_factory=list)
    unserved: list[str] = field(default_factory=list)
    hosted: set[str] = field(default_factory=set)

    def load(self, items: list[Item]) -> None:
        """Take in what items of the input add; a tool that is there already stays as it is, at its place."""
        for place, item in enumerate(items):
            if item.type in LOADING:
                for index, body in enumerate(item.tools):
                    at = f"input[{place}].tools[{index}]"
                    self.add(validate(body, ToolBody, at), at, "")
        first: dict[str, Tool] = {}
        for tool in self.tools:
            first.setdefault(tool.name, tool)
        if len(first) > limits.TOOLS_MAX:
            raise invalid(f"input: its items add tools beyond {limits.TOOLS_MAX}.", "input")
        self.tools = list(first.values())
        self.unserved = list(dict.fromkeys(self.unserved))

    def add(self, body: ToolBody, at: str, namespace: str) -> None:
        """Take in one tool, or the tools of a namespace."""
        if body.type in {"function", "custom", "namespace"}:
            check_tool_name(body.name, f"{at}.name")
        name = flattened(namespace, body.name)
        match body.type:
            case "function":
                parameters: dict[str, Any] = body.parameters or {"type": "object", "properties": {}}
                self.tools.append(Tool(name, body.description, parameters, body.strict, namespace))
            case "custom":
                held = grammar_of(body.format, f"{at}.format")
                tool = Tool(name, _described(body), FREE_FORM_PARAMETERS, namespace=namespace, grammar=held)
                self.tools.append(tool)
            case "namespace" if not namespace:
                for index, inner in enumerate(body.tools):
                    here = f"{at}.tools[{index}]"
                    self.add(validate(inner, ToolBody, here), here, body.name)
            case _:
                self.hosted.add(body.type)
                if body.type not in SERVER_KEPT:
                    self.unserved.append(body.name or body.type)


def grammar_of(given: Grammar | None, at: str) -> Constraint | None:
    """Return what a free-form tool's text must match.

    Raises:
        ApiError: 400 for a syntax that is neither `lark` nor `regex`, and for no definition.
    """
    if given is None or given.type != "grammar":
        return None
    if given.syntax not in {"lark", "regex"} or not given.definition:
        raise invalid(f"{at}: a grammar needs syntax (lark or regex) and definition.", at)
    return Constraint(given.syntax, given.definition)


def _described(body: ToolBody) -> str:
    """Return a custom tool's description with the grammar its input must follow."""
    if body.format is None or body.format.type != "grammar":
        return body.description
    return f"{body.description}\nThe input must match this {body.format.syntax} grammar:\n{body.format.definition}"


def allowed_of(given: str | ToolChoiceBody | None, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Return the tools that `allowed_tools` leaves; hosted ones among the allowed are not here anyway.

    Raises:
        ApiError: 400 for a name that is no tool's.
    """
    if not isinstance(given, ToolChoiceBody) or given.type != "allowed_tools":
        return tools
    named = [one for one in given.tools if one.get("type") in {"function", "custom"}]
    names = [flattened(str(one.get("namespace") or ""), str(one.get("name", ""))) for one in named]
    return narrowed(tools, names)


def tool_choice_of(
    given: str | ToolChoiceBody | None, tools: tuple[Tool, ...], hosted: frozenset[str], *, parallel: bool
) -> ToolChoice:
    """Return whether tools may or must be called; the choice of a tool that cannot run here is left to the model.

    Raises:
        ApiError: 400 for a choice that no tool fits.
    """
    if given is None:
        return ToolChoice(parallel=parallel)
    if isinstance(given, str):
        return ToolChoice(choice_mode(given, tools), parallel=parallel)
    if given.type in {"function", "custom"}:
        name = named_tool(flattened(given.namespace, given.name), tools)
        return ToolChoice(ToolChoiceMode.NAMED, name, parallel=parallel)
    if given.type == "allowed_tools":
        return ToolChoice(choice_mode(given.mode, tools), parallel=parallel)
    # A type may stand for its versions: `web_search_preview` for `web_search_preview_2025_03_11`.
    if not any(kind.startswith(given.type) or given.type.startswith(kind) for kind in hosted):
        raise invalid(f"tool_choice.type: {given.type[:40]!r} is the type of none of the tools.", "tool_choice.type")
    return ToolChoice(parallel=parallel)
