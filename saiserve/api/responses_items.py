"""Responses input: items as canonical messages.

Reasoning, text and calls that follow each other are one assistant message; each output follows the call it belongs to
as the client placed it. Items of hosted tools become plain calls and outputs (`responses_calls`), so that nothing a
model can read is lost.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from saiserve.api.body import invalid, validate
from saiserve.api.images import image_from_url
from saiserve.api.responses_calls import CALLS, DROPPED, OUTPUTS, call_of, flattened, result_of, text_of
from saiserve.api.responses_schema import Content, Item
from saiserve.chat.request import Message, Part, Role, TextPart

ROLES: dict[str, Role] = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
}
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
    calls = _OpenCalls()
    for index, item in enumerate(given):
        for message in _messages(item, f"input[{index}]", calls):
            if messages and _continues(messages[-1], message):
                messages[-1] = _merged(messages[-1], message)
            else:
                messages.append(message)
    return tuple(messages)


def is_reference(item: Item) -> bool:
    """Whether an item only names one that the server is to have; the type may be left out."""
    is_bare = item.type == "message" and not item.role and item.content is None and bool(item.id)
    return item.type == "item_reference" or is_bare


def carried(reasoning: str) -> str:
    """Return reasoning as `encrypted_content`: opaque to the client, read back by `messages_of`."""
    return base64.b64encode(CARRIED_PREFIX + reasoning.encode()).decode()


@dataclass(slots=True)
class _OpenCalls:
    """The calls so far, to find the one that an output without its id belongs to."""

    ids: dict[str, str] = field(default_factory=dict)
    """By the id of the item, where that is another than the call's."""
    by_name: dict[str, list[str]] = field(default_factory=dict)
    """Ids of calls, also all of them under an empty name."""
    answered: set[str] = field(default_factory=set)

    def add(self, item_id: str, call_id: str, name: str) -> None:
        """Note a call."""
        if item_id:
            self.ids[item_id] = call_id
        for key in ("", name):
            self.by_name.setdefault(key, []).append(call_id)

    def close(self, given: str, name: str) -> str:
        """Return the id of the call that an output answers: the one it gives, else the last open call of that name."""
        call_id = self.ids.get(given, given)
        waiting = self.by_name.get(name, [])
        while not call_id and waiting:
            last = waiting.pop()
            call_id = last if last not in self.answered else ""
        self.answered.add(call_id)
        return call_id


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


def _messages(item: Item, at: str, calls: _OpenCalls) -> Iterator[Message]:
    """Yield what one item says: a call may hold its result."""
    if is_reference(item):
        raise invalid(f"{at}: no kept response holds this item; send the item itself.", at)
    if item.type == "message":
        yield _said(item, at)
    elif item.type == "reasoning":
        yield Message(Role.ASSISTANT, reasoning=_reasoning(item))
    elif item.type in DROPPED:
        return
    elif item.type == "mcp_approval_response":
        answer = "approved" if item.approve else "refused"
        text = f"{answer}: {item.reason}" if item.reason else answer
        yield Message(Role.TOOL, (TextPart(text),), tool_call_id=item.approval_request_id)
    elif item.type in OUTPUTS or item.type.endswith("_output"):
        yield _output(item, at, calls)
    elif item.type in CALLS or item.type.endswith("_call"):
        call = call_of(item, at)
        calls.add(item.id, call.id, call.name)
        yield Message(Role.ASSISTANT, tool_calls=(call,))
        result = result_of(item)
        if result is not None:
            yield Message(Role.TOOL, (TextPart(result),), tool_call_id=calls.close(call.id, ""))
    else:
        raise invalid(f"{at}.type: {item.type[:40]!r} items are not taken here.", f"{at}.type")


def _said(item: Item, at: str) -> Message:
    role = ROLES.get(item.role)
    if role is None:
        raise invalid(f"{at}.role: {item.role[:40]!r} is not one of {', '.join(ROLES)}.", f"{at}.role")
    if item.content is None:
        raise invalid(f"{at}.content: this field is required.", f"{at}.content")
    return Message(role, _parts(item.content, f"{at}.content"))


def _output(item: Item, at: str, calls: _OpenCalls) -> Message:
    name = flattened(item.namespace, item.name)
    member = OUTPUTS.get(item.type, "output")
    parts = _came(getattr(item, member), item, f"{at}.{member}")
    is_function = item.type == "function_call_output"
    given = item.call_id or ("" if is_function else item.id)
    if not given and not is_function:
        raise invalid(f"{at}.call_id: this field is required.", f"{at}.call_id")
    call_id = calls.close(given, name)
    return Message(Role.TOOL, parts, name=name, tool_call_id=call_id, is_error=item.status == "failed")


def _came(value: Any, item: Item, at: str) -> tuple[Part, ...]:
    """Return what an output shows: texts and images as such, anything else as JSON."""
    if value is None:
        return (TextPart(item.status),) if item.type == "apply_patch_call_output" else ()
    if isinstance(value, dict) and isinstance(value.get("image_url"), str):
        return (image_from_url(value["image_url"], f"{at}.image_url"),)
    if isinstance(value, list) and item.type in {"function_call_output", "custom_tool_call_output"}:
        return _parts(validate(value, list[Content], at), at)
    return (TextPart(text_of(value)),)


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
        case "input_image" | "computer_screenshot":
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
