"""Anthropic Messages, incoming: one message of a body as canonical ones.

Tool results come before the rest of their user turn. What Anthropic's servers ran for an assistant turn becomes a call
and its result where it stood, as if the client had run it. `DROPPED` says what a model is not shown, and why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from saiserve.api.body import invalid, validate
from saiserve.api.images import image_from_base64, image_from_url
from saiserve.api.messages_schema import Block, ImageSource, MessageBody
from saiserve.chat.request import ImagePart, Message, Part, Role, TextPart, ToolCall

ROLES: Final[dict[str, Role]] = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
CALLS: Final = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
"""Blocks that are calls, whoever ran them."""
TOOL_CHANGES: Final = frozenset({"tool_addition", "tool_removal"})
"""Blocks that change which tools are shown (`saiserve.api.messages_tools`)."""
DROPPED: Final[dict[str, str]] = {
    "redacted_thinking": "encrypted for Anthropic's servers",
    "container_upload": "a file in a container of Anthropic's",
    "mcp_tool_listing": "tools that only Anthropic's servers can reach",
    "fallback": "says which model took over",
    "mid_conv_tool_change": "an earlier name of changes to tools",
    **dict.fromkeys(sorted(TOOL_CHANGES), "changes the tools that are shown, and is read there"),
}
"""Blocks that are no part of the conversation a model sees, and why."""


def messages_of(body: MessageBody, at: str) -> list[Message]:
    """Return one body message as canonical ones: tool results first, then what remains of the turn.

    Raises:
        ApiError: 400; the message names the field at fault.
    """
    role = ROLES.get(body.role)
    if role is None:
        raise invalid(f"{at}.role: {body.role[:40]!r} is not one of {', '.join(ROLES)}.", f"{at}.role")
    if isinstance(body.content, str):
        return [Message(role, (TextPart(body.content),))]
    turn = _Turn(role, f"{at}.content")
    for index, block in enumerate(body.content):
        turn.add(block, f"{at}.content[{index}]")
    return turn.messages(is_empty=all(block.type in DROPPED for block in body.content) and bool(body.content))


@dataclass(slots=True)
class _Turn:
    """One message while its blocks are read."""

    role: Role
    at: str
    said: list[Message] = field(default_factory=list)
    """What comes before the rest."""
    parts: list[Part] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    reasoning: str = ""

    def add(self, block: Block, here: str) -> None:
        """Take in one block."""
        if block.type in CALLS:
            if self.role is not Role.ASSISTANT:
                raise invalid(f"{self.at}: only assistant messages hold {block.type} blocks.", self.at)
            self.calls.append(_tool_use(block, here))
        elif block.type == "tool_result":
            if self.role is not Role.USER:
                raise invalid(f"{self.at}: only user messages hold tool_result blocks.", self.at)
            self.said.append(_tool_result(block, here))
        elif block.type.endswith("_tool_result") and block.tool_use_id:
            if self.role is Role.ASSISTANT:
                self._flush()
            self.said.append(_server_result(block, here))
        elif block.type == "thinking":
            self.reasoning += block.thinking
        else:
            self.parts += parts_of(block, here)

    def messages(self, *, is_empty: bool) -> list[Message]:
        """Return the turn; `is_empty`: nothing of it is for the model."""
        if (not self.said and not is_empty) or self.parts or self.calls or self.reasoning:
            self._flush()
        return self.said

    def _flush(self) -> None:
        rest = Message(self.role, tuple(self.parts), reasoning=self.reasoning, tool_calls=tuple(self.calls))
        self.said.append(rest)
        self.parts, self.calls, self.reasoning = [], [], ""


def _tool_use(block: Block, at: str) -> ToolCall:
    if not block.id or not block.name:
        raise invalid(f"{at}: a {block.type} block needs id and name.", at)
    arguments = block.input if block.input is not None else {}
    name = f"{block.server_name}__{block.name}" if block.server_name else block.name
    return ToolCall(id=block.id, name=name, arguments=msgspec.json.encode(arguments).decode())


def _tool_result(block: Block, at: str) -> Message:
    if not block.tool_use_id:
        raise invalid(f"{at}.tool_use_id: this field is required.", f"{at}.tool_use_id")
    content = block.content
    parts: list[Part] = []
    if isinstance(content, str):
        parts.append(TextPart(content))
    elif content is not None:
        for index, inner in enumerate(validate(content, list[Block], f"{at}.content")):
            parts += parts_of(inner, f"{at}.content[{index}]")
    return Message(Role.TOOL, tuple(parts), tool_call_id=block.tool_use_id, is_error=block.is_error)


def _server_result(block: Block, at: str) -> Message:
    """Return what Anthropic's servers found; texts as such, anything else as JSON."""
    if block.type == "mcp_tool_result":
        return _tool_result(block, at)
    text = TextPart(msgspec.json.encode(block.content).decode())
    return Message(Role.TOOL, (text,), tool_call_id=block.tool_use_id, is_error=block.is_error)


def parts_of(block: Block, at: str) -> list[Part]:
    """Return what a block shows to the model; an empty text block shows nothing.

    Raises:
        ApiError: 400 for blocks that cannot be shown.
    """
    match block.type:
        case "text":
            if block.text is None:
                raise invalid(f"{at}.text: this field is required.", f"{at}.text")
            return [TextPart(block.text)] if block.text else []
        case "image":
            return [_image(block, at)]
        case "document":
            return [_document(block, at)]
        case "tool_reference":
            return [TextPart(f"The tool {block.tool_name} can now be called.")]
        case "search_result":
            source = block.source if isinstance(block.source, str) else ""
            return [TextPart(f"{block.title}\n{source}\n{_inner_text(block.content, at)}")]
        case "compaction":
            return [TextPart(block.content)] if isinstance(block.content, str) and block.content else []
        case dropped if dropped in DROPPED:
            return []
        case other if other.endswith("_tool_result"):
            return [TextPart(msgspec.json.encode(block.content).decode())]
    raise invalid(f"{at}.type: {block.type[:40]!r} blocks are not taken here.", f"{at}.type")


def _inner_text(content: Any, at: str) -> str:
    if isinstance(content, str):
        return content
    blocks = validate(content or [], list[Block], f"{at}.content")
    return "\n".join(block.text or "" for block in blocks)


def _image(block: Block, at: str) -> ImagePart:
    source = block.source
    if not isinstance(source, ImageSource):
        raise invalid(f"{at}.source: this field is required.", f"{at}.source")
    if source.type == "base64":
        return image_from_base64(source.media_type, source.data, f"{at}.source")
    if source.type == "url":
        return image_from_url(source.url, f"{at}.source.url")
    raise invalid(f"{at}.source.type: {source.type[:40]!r} is not taken here; use base64.", f"{at}.source.type")


def _document(block: Block, at: str) -> TextPart:
    source = block.source
    if not isinstance(source, ImageSource) or source.type not in {"text", "content"}:
        raise invalid(f"{at}.source: only text documents are taken here.", f"{at}.source")
    text = source.data if source.type == "text" else _inner_text(source.content, f"{at}.source")
    return TextPart("\n".join(filter(None, (block.title, block.context, text))))
