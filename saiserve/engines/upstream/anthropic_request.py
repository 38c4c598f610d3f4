"""A canonical request as a Messages body for a target.

System messages at the head become `system`; later ones stay in place as marked user text, because targets of this dialect
refuse or hoist them. Turns alternate, with all results of a turn's calls first in the user turn after it. Reasoning is
left out: its signature is another server's.
"""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

from saiserve.chat.request import (
    Dialect,
    GenerationRequest,
    ImagePart,
    Message,
    Part,
    Role,
    TextPart,
    Tool,
    ToolCall,
    ToolChoiceMode,
)
from saiserve.engines.upstream.limits_of import answer_limit
from saiserve.engines.upstream.names import sent_id, sent_name
from saiserve.engines.upstream.raw import given, with_fields
from saiserve.engines.upstream.targets import TargetModel
from saiserve.errors import ApiError, ErrorKind

OUTPUT_TOKENS_DEFAULT: Final = 4_096
"""The limit on an answer when neither client nor configuration names one: the dialect requires one."""
_CHOICES: Final = {ToolChoiceMode.AUTO: "auto", ToolChoiceMode.NONE: "none", ToolChoiceMode.REQUIRED: "any"}


def messages_body(request: GenerationRequest, model: TargetModel) -> bytes:
    """The body of `POST /v1/messages` for one answer.

    Raises:
        ApiError: 400 for what the dialect cannot say.
    """
    if request.dialect is Dialect.MESSAGES and request.raw:
        return with_fields(request.raw, {"model": model.name})
    if request.messages is None:
        raise ApiError(
            ErrorKind.INVALID_REQUEST,
            f"the model {request.model!r} is an upstream's and takes conversations: use /v1/chat/completions",
            param="prompt",
        )
    body = {**prompt_fields(request, model), "stream": request.stream, **_sampling(request)}
    limit = answer_limit(request, model)
    body["max_tokens"] = limit if limit is not None else model.output_tokens or OUTPUT_TOKENS_DEFAULT
    if request.stop:
        body["stop_sequences"] = list(request.stop)
    return msgspec.json.encode(body)


def prompt_fields(request: GenerationRequest, model: TargetModel) -> dict[str, Any]:
    """What counts as the prompt: model, system, messages, tools, output format."""
    messages = request.messages or ()
    head = 0
    while head < len(messages) and messages[head].role is Role.SYSTEM:
        head += 1
    fields: dict[str, Any] = {"model": model.name, "messages": anthropic_messages(messages[head:])}
    system = [_text(message.text) for message in messages[:head] if message.text]
    if system:
        fields["system"] = system
    if request.tools:
        fields["tools"] = [_tool(tool) for tool in request.tools]
        choice = _tool_choice(request)
        if choice is not None:
            fields["tool_choice"] = choice
    if request.constraint is not None:
        fields["output_config"] = {"format": _output_format(request)}
    return fields


def anthropic_messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """Turns in strict alternation; what is empty is left out, and so are text blocks without text."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        blocks = _blocks(message)
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        # The results of calls come first in their turn, in the order they were given.
        turn["content"].sort(key=lambda block: block["type"] != "tool_result")
    _trim_prefill(turns)
    return turns


def _trim_prefill(turns: list[dict[str, Any]]) -> None:
    """The API refuses an answer's beginning that ends in white space."""
    if turns and turns[-1]["role"] == "assistant" and turns[-1]["content"][-1]["type"] == "text":
        last = turns[-1]["content"][-1]
        last["text"] = last["text"].rstrip()
        if not last["text"]:
            turns[-1]["content"].pop()
        if not turns[-1]["content"]:
            turns.pop()


def _blocks(message: Message) -> list[dict[str, Any]]:
    match message.role:
        case Role.TOOL:
            return [_tool_result(message)]
        case Role.SYSTEM:
            return [_text(f"<system>\n{message.text}\n</system>")] if message.text else []
        case _:
            return [*_parts(message.parts), *(_tool_use(call) for call in message.tool_calls)]


def _parts(parts: tuple[Part, ...]) -> list[dict[str, Any]]:
    return [_part(part) for part in parts if isinstance(part, ImagePart) or part.text]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return _text(part.text)
    data = base64.b64encode(part.data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": data}}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": sent_id(call.id), "name": sent_name(call.name), "input": _input(call.arguments)}


def _input(arguments: str) -> dict[str, Any]:
    """A call's input is an object here; arguments that are none (cut short, a list) go along as text."""
    try:
        parsed = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return {"arguments": arguments}
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}


def _tool_result(message: Message) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": sent_id(message.tool_call_id)}
    blocks = _parts(message.parts)
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        block["content"] = blocks[0]["text"]
    elif blocks:
        block["content"] = blocks
    return block | ({"is_error": True} if message.is_error else {})


def _tool(tool: Tool) -> dict[str, Any]:
    schema = tool.parameters if tool.parameters.get("type") == "object" else {"type": "object", **tool.parameters}
    body: dict[str, Any] = {"name": sent_name(tool.name), "input_schema": schema}
    if tool.description:
        body["description"] = tool.description
    if tool.strict:
        body["strict"] = True
    return body


def _tool_choice(request: GenerationRequest) -> dict[str, Any] | None:
    choice = request.tool_choice
    body: dict[str, Any] = (
        {"type": "tool", "name": sent_name(choice.name)}
        if choice.mode is ToolChoiceMode.NAMED
        else {"type": _CHOICES[choice.mode]}
    )
    if choice.mode is ToolChoiceMode.NONE:
        return body
    if not choice.parallel:
        body["disable_parallel_tool_use"] = True
    return None if body == {"type": "auto"} else body


def _output_format(request: GenerationRequest) -> dict[str, Any]:
    constraint = request.constraint
    assert constraint is not None
    if constraint.kind == "json_schema":
        return {"type": "json_schema", "schema": msgspec.json.decode(constraint.body)}
    raise ApiError(
        ErrorKind.INVALID_REQUEST,
        f"{constraint.kind} cannot be enforced by the upstream of {request.model!r}: give a JSON schema",
    )


def _sampling(request: GenerationRequest) -> dict[str, Any]:
    """What the client set, where Anthropic has a word for it; its temperatures end at 1."""
    set_by_client = given(request.raw)
    fields: dict[str, Any] = {}
    if set_by_client.temperature is not None:
        fields["temperature"] = min(1.0, set_by_client.temperature)
    if set_by_client.top_p is not None:
        fields["top_p"] = set_by_client.top_p
    if set_by_client.top_k is not None and set_by_client.top_k > 0:
        fields["top_k"] = set_by_client.top_k
    return fields
