"""Anthropic Messages, incoming: what a body means as a `GenerationRequest`.

System messages stay where the client put them. Tool results come before the rest of their user turn. Blocks meant for
Anthropic's own servers (billing header, redacted thinking) are left out of the prompt; `raw` keeps them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from saiserve.api.body import decode, invalid, validate
from saiserve.api.chat_request import continues_final
from saiserve.api.context import Origin
from saiserve.api.images import image_from_base64, image_from_url
from saiserve.api.messages_schema import THINKING, Block, CountBody, ImageSource, MessageBody, MessagesBody
from saiserve.api.messages_tools import referenced_tools, tool_choice_of, tools_of, unserved_tools_note
from saiserve.api.sampling import (
    MIN_P_DEFAULT,
    TEMPERATURE_DEFAULT,
    TOP_K_DEFAULT,
    TOP_P_DEFAULT,
    schema_constraint,
    stop_of,
)
from saiserve.chat.request import Dialect, GenerationRequest, ImagePart, Message, Part, Role, TextPart, ToolCall
from saiserve.engines.messages import Constraint, Sampling

ROLES: dict[str, Role] = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
BILLING_PREFIX = "x-anthropic-billing-header:"
"""A system block with this start changes from run to run and is not for the model."""
INTERLEAVED = "interleaved-thinking"
"""The beta by which a thinking budget is one of a whole turn with its tool calls."""
DROPPED = frozenset({"redacted_thinking", "mid_conv_tool_change", "compaction"})
"""Blocks that only Anthropic's servers can read."""


def decode_messages(data: bytes, origin: Origin) -> GenerationRequest:
    """Return the request a body asks for.

    Raises:
        ApiError: 400; the message names the field at fault.
    """
    body = decode(data, MessagesBody)
    request = _prompt(body, origin, data)
    seed = origin.draw_seed()
    return replace(
        request,
        sampling=Sampling(
            seed=seed,
            temperature=TEMPERATURE_DEFAULT if body.temperature is None else body.temperature,
            top_k=TOP_K_DEFAULT if body.top_k is None else body.top_k,
            top_p=TOP_P_DEFAULT if body.top_p is None else body.top_p,
            min_p=MIN_P_DEFAULT,
        ),
        max_tokens=body.max_tokens,
        stop=stop_of(body.stop_sequences, "stop_sequences"),
        stream=body.stream,
        stream_usage=True,
        conversation=origin.conversation or (body.metadata.user_id if body.metadata is not None else ""),
    )


def decode_count(data: bytes, origin: Origin) -> GenerationRequest:
    """Return the request whose prompt is to be counted.

    Raises:
        ApiError: 400; the message names the field at fault.
    """
    return _prompt(decode(data, CountBody), origin, data)


def _prompt(body: CountBody, origin: Origin, data: bytes) -> GenerationRequest:
    tools = tools_of(body.tools, referenced_tools(body.messages))
    note = unserved_tools_note(body.tools)
    system = _system(body.system)
    if note:
        system = (*system, Message(Role.SYSTEM, (TextPart(note),)))
    messages = system
    for index, message in enumerate(body.messages):
        messages += tuple(_messages(message, f"messages[{index}]"))
    return GenerationRequest(
        id=origin.request_id,
        dialect=Dialect.MESSAGES,
        model=origin.model(body.model),
        sampling=Sampling(seed=0),
        messages=messages,
        tools=tools,
        tool_choice=tool_choice_of(body.tool_choice, tools),
        constraint=_constraint(body),
        continue_final=continues_final(messages, wanted=None),
        key_name=origin.key_name,
        template_options=_template_options(body),
        reasoning_tokens=_reasoning_tokens(body),
        raw=data,
        created=origin.created,
    )


def _system(system: str | list[Block] | None) -> tuple[Message, ...]:
    if system is None:
        return ()
    if isinstance(system, str):
        return (Message(Role.SYSTEM, (TextPart(system),)),) if system else ()
    texts = [_text(block, f"system[{index}]") for index, block in enumerate(system)]
    kept = [text for text in texts if text and not text.startswith(BILLING_PREFIX)]
    return (Message(Role.SYSTEM, (TextPart("\n\n".join(kept)),)),) if kept else ()


def _text(block: Block, at: str) -> str:
    if block.type != "text" or block.text is None:
        raise invalid(f"{at}: only text blocks are taken here.", at)
    return block.text


def _messages(body: MessageBody, at: str) -> list[Message]:
    """Return one body message as canonical ones: tool results first, then what remains of the turn."""
    role = ROLES.get(body.role)
    if role is None:
        raise invalid(f"{at}.role: {body.role[:40]!r} is not one of {', '.join(ROLES)}.", f"{at}.role")
    if isinstance(body.content, str):
        return [Message(role, (TextPart(body.content),))]
    results: list[Message] = []
    parts: list[Part] = []
    calls: list[ToolCall] = []
    reasoning = ""
    for index, block in enumerate(body.content):
        here = f"{at}.content[{index}]"
        match block.type:
            case "tool_result":
                results.append(_tool_result(block, here))
            case "tool_use" | "server_tool_use":
                calls.append(_tool_use(block, here))
            case "thinking":
                reasoning += block.thinking
            case _:
                parts += _parts(block, here)
    if calls and role is not Role.ASSISTANT:
        raise invalid(f"{at}.content: only assistant messages hold tool_use blocks.", f"{at}.content")
    if results and role is not Role.USER:
        raise invalid(f"{at}.content: only user messages hold tool_result blocks.", f"{at}.content")
    if results and not parts:
        return results
    return [*results, Message(role, tuple(parts), reasoning=reasoning, tool_calls=tuple(calls))]


def _tool_use(block: Block, at: str) -> ToolCall:
    if not block.id or not block.name:
        raise invalid(f"{at}: a {block.type} block needs id and name.", at)
    arguments = block.input if block.input is not None else {}
    return ToolCall(id=block.id, name=block.name, arguments=msgspec.json.encode(arguments).decode())


def _tool_result(block: Block, at: str) -> Message:
    if not block.tool_use_id:
        raise invalid(f"{at}.tool_use_id: this field is required.", f"{at}.tool_use_id")
    content = block.content
    parts: list[Part] = []
    if isinstance(content, str):
        parts.append(TextPart(content))
    elif content is not None:
        for index, inner in enumerate(validate(content, list[Block], f"{at}.content")):
            parts += _parts(inner, f"{at}.content[{index}]")
    return Message(Role.TOOL, tuple(parts), tool_call_id=block.tool_use_id, is_error=block.is_error)


def _parts(block: Block, at: str) -> list[Part]:
    """Return what a block shows to the model; an empty text block shows nothing."""
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
    return TextPart(f"{block.title}\n{text}" if block.title else text)


def _constraint(body: CountBody) -> Constraint | None:
    given = body.output_config.format if body.output_config is not None else None
    if given is None or given.type == "text":
        return None
    if given.type != "json_schema" or given.schema is None:
        raise invalid("output_config.format: must be {type: json_schema, schema}.", "output_config.format")
    return schema_constraint(given.schema)


def _template_options(body: CountBody) -> dict[str, Any]:
    options: dict[str, Any] = {"enable_thinking": thinking_wanted(body)}
    if body.output_config is not None and body.output_config.effort:
        options["reasoning_effort"] = body.output_config.effort
    return options


def thinking_wanted(body: CountBody) -> bool:
    """Whether thinking is on; absent means off."""
    return body.thinking is not None and body.thinking.type != "disabled"


def _reasoning_tokens(body: CountBody) -> int | None:
    """Return the bound on thinking that `enabled` must give and the others leave to the model."""
    thinking = body.thinking
    if thinking is None:
        return None
    if thinking.type not in THINKING:
        raise invalid(f"thinking.type: {thinking.type[:40]!r} is not one of {', '.join(THINKING)}.", "thinking.type")
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise invalid(
            "thinking.budget_tokens: this field is required when thinking is enabled.", "thinking.budget_tokens"
        )
    return None if thinking.type == "disabled" else thinking.budget_tokens


def check_budget(request: GenerationRequest, betas: str) -> None:
    """Refuse a thinking budget that leaves nothing for the answer; with INTERLEAVED it may span several answers.

    Raises:
        ApiError: 400.
    """
    budget, limit = request.reasoning_tokens, request.max_tokens
    if budget is not None and limit is not None and budget >= limit and INTERLEAVED not in betas:
        raise invalid("max_tokens: must be greater than thinking.budget_tokens.", "max_tokens")
