"""Responses input: items as canonical messages.

Reasoning, text and calls that follow each other are one assistant message; each output follows the call it belongs to
as the client placed it. Items of hosted tools become plain calls and outputs, so that nothing is lost.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace

import msgspec

from saiserve.api.body import invalid
from saiserve.api.images import image_from_url
from saiserve.api.responses_schema import Content, Item
from saiserve.chat.request import Message, Part, Role, TextPart, ToolCall

ROLES: dict[str, Role] = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
}
DROPPED = frozenset({"compaction", "tool_search_call", "tool_search_output", "additional_tools", "program"})
"""Items that only OpenAI's servers can read or that say nothing to a model."""
CARRIED_PREFIX = b"saiserve:"
"""Begins the `encrypted_content` made here: reasoning carried by a client that keeps its own history."""


def messages_of(given: str | list[Item] | None) -> tuple[Message, ...]:
    """Return the messages an input means; no input is an empty user turn, a warm-up.

    Raises:
        ApiError: 400; `param` names the item at fault.
    """
    if given is None or isinstance(given, str):
        return (Message(Role.USER, (TextPart(given or ""),)),)
    messages: list[Message] = []
    for index, item in enumerate(given):
        message = _message(item, f"input[{index}]")
        if message is None:
            continue
        if messages and _continues(messages[-1], message):
            messages[-1] = _merged(messages[-1], message)
        else:
            messages.append(message)
    return tuple(messages)


def flattened(namespace: str, name: str) -> str:
    """Return the name under which a model knows a tool of a namespace."""
    return f"{namespace}__{name}" if namespace else name


def carried(reasoning: str) -> str:
    """Return reasoning as `encrypted_content`: opaque to the client, read back by `messages_of`."""
    return base64.b64encode(CARRIED_PREFIX + reasoning.encode()).decode()


def _continues(last: Message, message: Message) -> bool:
    """Whether two assistant messages are parts of one turn: text ends it unless calls follow."""
    if last.role is not Role.ASSISTANT or message.role is not Role.ASSISTANT:
        return False
    return not (message.parts and (last.parts or last.tool_calls)) and not (message.reasoning and last.tool_calls)


def _merged(last: Message, message: Message) -> Message:
    return replace(
        last,
        parts=last.parts + message.parts,
        reasoning=last.reasoning + message.reasoning,
        tool_calls=last.tool_calls + message.tool_calls,
    )


def _message(item: Item, at: str) -> Message | None:
    match item.type:
        case "message":
            role = ROLES.get(item.role)
            if role is None:
                raise invalid(f"{at}.role: {item.role[:40]!r} is not one of {', '.join(ROLES)}.", f"{at}.role")
            if item.content is None:
                raise invalid(f"{at}.content: this field is required.", f"{at}.content")
            return Message(role, _parts(item.content, f"{at}.content"))
        case "reasoning":
            return Message(Role.ASSISTANT, reasoning=_reasoning(item))
        case "item_reference":
            raise invalid(f"{at}: items are not kept here; send the item itself.", at)
        case dropped if dropped in DROPPED:
            return None
        case call if call.endswith("_call"):
            return Message(Role.ASSISTANT, tool_calls=(_call(item, at),))
        case output if output.endswith("_output"):
            if not item.call_id:
                raise invalid(f"{at}.call_id: this field is required.", f"{at}.call_id")
            return Message(Role.TOOL, _parts(item.output or "", f"{at}.output"), tool_call_id=item.call_id)
    raise invalid(f"{at}.type: {item.type[:40]!r} items are not taken here.", f"{at}.type")


def _call(item: Item, at: str) -> ToolCall:
    call_id = item.call_id or item.id
    if item.type == "function_call":
        if not item.name or item.arguments is None or not call_id:
            raise invalid(f"{at}: a function_call needs call_id, name and arguments.", at)
        return ToolCall(call_id, flattened(item.namespace, item.name), item.arguments, item.namespace)
    body = {"input": item.input} if item.input is not None else {}
    name = flattened(item.namespace, item.name or item.type.removesuffix("_call"))
    return ToolCall(call_id, name, msgspec.json.encode(body).decode(), item.namespace)


def _parts(content: str | list[Content], at: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(_part(part, f"{at}[{index}]") for index, part in enumerate(content))


def _part(part: Content, at: str) -> Part:
    match part.type:
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            if part.text is None:
                raise invalid(f"{at}.text: this field is required.", f"{at}.text")
            return TextPart(part.text)
        case "refusal":
            return TextPart(part.refusal)
        case "input_image":
            if part.image_url is None:
                raise invalid(f"{at}.image_url: this field is required; files are not kept here.", f"{at}.image_url")
            return image_from_url(part.image_url, f"{at}.image_url")
    raise invalid(f"{at}.type: {part.type[:40]!r} parts are not taken here.", f"{at}.type")


def _reasoning(item: Item) -> str:
    content = item.content if isinstance(item.content, list) else []
    text = "".join(part.text or "" for part in content)
    if not text and item.encrypted_content:
        try:
            plain = base64.b64decode(item.encrypted_content, validate=True)
        except (binascii.Error, ValueError):
            plain = b""
        text = plain.removeprefix(CARRIED_PREFIX).decode("utf-8", "replace") if plain.startswith(CARRIED_PREFIX) else ""
    return text or "".join(part.text or "" for part in item.summary)
