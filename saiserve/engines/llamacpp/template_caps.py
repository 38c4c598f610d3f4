"""What a chat template can take, found by rendering short conversations and looking for their words. Pure.

Names and source code say little: a template may mention tools and drop them, or raise at a system message. So each
question is a conversation with words that occur nowhere else, and the answer is whether they come out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from saiserve.engines.llamacpp.template_order import OrderCaps, probe_order, reorder

Tools = Sequence[Mapping[str, Any]] | None
Render = Callable[[Sequence[Mapping[str, Any]], Tools], str]
"""Messages and tools to text; raises ValueError when the template refuses them."""

WORD, OTHER, LATER, KEY = "zqword", "zqother", "zqlater", "zqkey"
"""Words that no template has of its own."""
TOOL = {
    "type": "function",
    "function": {
        "name": WORD,
        "description": "does it",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "where"}},
            "required": ["place"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class TemplateCaps:
    """True where the template shows the model what it is given."""

    string_content: bool = True
    typed_content: bool = False
    """Content as a list of parts."""
    system: bool = True
    """A system message at the head."""
    tools: bool = False
    """The tools a request offers."""
    tool_calls: bool = False
    """Calls the assistant made."""
    object_arguments: bool = True
    """A call's arguments are best given as an object; else as JSON text."""
    null_content: bool = False
    """Calls are shown only beside content that is null, not beside an empty text."""
    parallel_calls: bool = False
    tool_results: bool = False
    empty_tools: bool = False
    """Without tools it wants an empty list, where others want null."""
    order: OrderCaps = field(default_factory=OrderCaps)
    """Orders of messages that come out whole."""

    def as_flags(self) -> dict[str, bool]:
        """By llama-server's names (`chat_template_caps` of `/props`), where it has one."""
        flags = asdict(self)
        flags |= flags.pop("order")
        return {LLAMA_SERVER_NAMES.get(name, f"supports_{name}"): value for name, value in flags.items()}


LLAMA_SERVER_NAMES = {"system": "supports_system_role", "parallel_calls": "supports_parallel_tool_calls"}


def probe(render: Render) -> TemplateCaps:
    """Ask the template everything."""
    string, parts = [_user(WORD)], [_user(_parts(WORD))]
    shown = {given: any(_shows(render, one, WORD, tools=given) for one in (string, parts)) for given in (None, ())}
    empty_tools = shown[()] and not shown[None]
    none: Tools = () if empty_tools else None
    as_string, as_parts = (_shows(render, one, WORD, tools=none) for one in (string, parts))
    say = _parts if as_parts and not as_string else str
    user = _user(say("hello"))
    form = _form_of_calls(render, user, say)
    kind, content = form or (dict, say(""))
    one_call, two_calls = (_called(user, content, kind, count) for count in (1, 2))
    after_call = [*one_call, _result(say)]
    tool_results = _shows(render, after_call, OTHER, tools=[TOOL])
    user_after_tool = not tool_results or _shows(render, [*after_call, _user(say(LATER))], LATER, tools=[TOOL])
    return TemplateCaps(
        string_content=as_string or not as_parts,
        typed_content=as_parts,
        system=_shows(render, [{"role": "system", "content": say(WORD)}, user], WORD, tools=none),
        tools=_shows(render, [user], WORD, tools=[TOOL]),
        tool_calls=form is not None,
        object_arguments=kind is dict,
        null_content=content is None,
        parallel_calls=form is not None and _shows(render, two_calls, OTHER, tools=[TOOL]),
        tool_results=tool_results,
        empty_tools=empty_tools,
        order=probe_order(lambda messages: render(messages, none), say, user_after_tool=user_after_tool),
    )


def adapt(messages: list[dict[str, Any]], caps: TemplateCaps) -> list[dict[str, Any]]:
    """The same conversation in the form the template can take, nothing of it lost."""
    messages = reorder(messages, caps.order, system=caps.system)
    if caps.null_content:
        messages = [
            {**message, "content": None} if message.get("tool_calls") and not message.get("content") else message
            for message in messages
        ]
    if not caps.object_arguments:
        messages = [_with_text_arguments(message) for message in messages]
    if not caps.string_content:
        messages = [
            {**message, "content": _parts(message["content"])} if isinstance(message.get("content"), str) else message
            for message in messages
        ]
    return messages


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _shows(render: Render, messages: Sequence[Mapping[str, Any]], word: str, *, tools: Tools = None) -> bool:
    try:
        return word in render(messages, tools)
    except ValueError:
        return False


def _call(name: str, number: int, kind: type) -> dict[str, Any]:
    arguments: Any = {KEY: name}
    if kind is str:
        arguments = json.dumps(arguments)
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _called(user: Mapping[str, Any], content: Any, kind: type, count: int = 1) -> list[Mapping[str, Any]]:
    calls = [_call(name, number, kind) for number, name in enumerate((WORD, OTHER)[:count])]
    return [user, {"role": "assistant", "content": content, "tool_calls": calls}]


def _result(say: Callable[[str], Any]) -> dict[str, Any]:
    return {"role": "tool", "name": WORD, "tool_call_id": "call00000", "content": say(OTHER)}


def _form_of_calls(render: Render, user: Mapping[str, Any], say: Callable[[str], Any]) -> tuple[type, Any] | None:
    """Arguments as an object or as JSON text, and the content beside them, so that a call comes out whole."""
    for content in (say(""), None):
        for kind in (dict, str):
            called = _called(user, content, kind)
            try:
                text = render([*called, _result(say)], [TOOL])
            except ValueError:
                continue
            if KEY in text and f"'{KEY}'" not in text and f'\\"{KEY}' not in text:
                return kind, content
    return None


def _with_text_arguments(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_with_text(call) for call in calls]} if isinstance(calls, list) else message


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or isinstance(function.get("arguments"), str):
        return call
    text = json.dumps(function.get("arguments"), ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}
