"""A canonical request as a Chat Completions body for a target.

System messages stay in place. Tool results follow their calls directly; images in them follow as a user turn, because
tool messages hold text alone. What the client left open stays open: this node's own defaults are for its own models.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
    ToolChoice,
    ToolChoiceMode,
)
from saiserve.engines.upstream.limits_of import answer_limit
from saiserve.engines.upstream.names import sent_id, sent_name
from saiserve.engines.upstream.raw import given, with_fields
from saiserve.engines.upstream.targets import Target, TargetModel
from saiserve.errors import ApiError, ErrorKind

FAILED_TOOL = "The tool failed: "
"""What `is_error` of a tool result becomes where results are text alone."""
_MODES = {ToolChoiceMode.AUTO: "auto", ToolChoiceMode.NONE: "none", ToolChoiceMode.REQUIRED: "required"}


def chat_body(request: GenerationRequest, target: Target, model: TargetModel, choice: int = 0) -> bytes:
    """The body of `POST /chat/completions` for one choice of a request, or for all of it when it asks for one.

    Raises:
        ApiError: 400 for what the dialect cannot say.
    """
    if request.dialect is Dialect.CHAT and request.raw:
        return _own_body(request, model, choice)
    if request.messages is None:
        raise ApiError(
            ErrorKind.INVALID_REQUEST,
            f"the model {request.model!r} is an upstream's and takes conversations: use /v1/chat/completions",
            param="prompt",
        )
    body: dict[str, Any] = {
        "model": model.name,
        "messages": chat_messages(request.messages, keep_reasoning="reasoning" in model.capabilities),
        "stream": request.stream,
        **_tools(request.tools, request.tool_choice),
        **_sampling(request, model),
    }
    if request.stream:
        body["stream_options"] = {"include_usage": True}
    limit = answer_limit(request, model)
    if limit is not None:
        body[target.limit_field] = limit
    if request.stop:
        body["stop"] = list(request.stop)
    if request.constraint is not None:
        body["response_format"] = _response_format(request)
    return msgspec.json.encode(body)


def _own_body(request: GenerationRequest, model: TargetModel, choice: int) -> bytes:
    set_by_client = given(request.raw)
    changes: dict[str, Any] = {"model": model.name}
    if request.stream:
        changes["stream_options"] = {**(set_by_client.stream_options or {}), "include_usage": True}
    if request.choices == 1:
        return with_fields(request.raw, changes)
    if set_by_client.seed is not None:
        changes["seed"] = set_by_client.seed + choice
    return with_fields(request.raw, changes, without=("n",))


def chat_messages(messages: Iterable[Message], *, keep_reasoning: bool = False) -> list[dict[str, Any]]:
    """Messages in the shape of Chat Completions."""
    result: list[dict[str, Any]] = []
    shown: list[Part] = []
    for message in messages:
        if message.role is not Role.TOOL and shown:
            result.append({"role": "user", "content": _content(tuple(shown))})
            shown = []
        if message.role is Role.TOOL:
            result.append(_tool_result(message))
            shown += [part for part in message.parts if isinstance(part, ImagePart)]
        elif message.role is Role.ASSISTANT:
            result.append(_assistant(message, keep_reasoning=keep_reasoning))
        else:
            named = {"name": message.name} if message.name else {}
            result.append({"role": message.role.value, "content": _content(message.parts), **named})
    if shown:
        result.append({"role": "user", "content": _content(tuple(shown))})
    return result


def _assistant(message: Message, *, keep_reasoning: bool) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.tool_calls:
        plain["content"] = message.text or None
        plain["tool_calls"] = [
            {
                "id": sent_id(call.id),
                "type": "function",
                "function": {"name": sent_name(call.name), "arguments": call.arguments or "{}"},
            }
            for call in message.tool_calls
        ]
    if keep_reasoning and message.reasoning:
        plain["reasoning_content"] = message.reasoning
    return plain


def _tool_result(message: Message) -> dict[str, Any]:
    text = message.text
    if message.is_error:
        text = f"{FAILED_TOOL}{text}"
    return {"role": "tool", "tool_call_id": sent_id(message.tool_call_id), "content": text}


def _content(parts: tuple[Part, ...]) -> str | list[dict[str, Any]]:
    """Text as a string; parts only where there is an image."""
    if all(isinstance(part, TextPart) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, TextPart))
    return [_part(part) for part in parts]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": part.data_uri}}


def _tools(tools: tuple[Tool, ...], choice: ToolChoice) -> dict[str, Any]:
    if not tools:
        return {}
    fields: dict[str, Any] = {"tools": [_tool(tool) for tool in tools]}
    if choice.mode is ToolChoiceMode.NAMED:
        fields["tool_choice"] = {"type": "function", "function": {"name": sent_name(choice.name)}}
    elif choice.mode is not ToolChoiceMode.AUTO:
        fields["tool_choice"] = _MODES[choice.mode]
    if not choice.parallel:
        fields["parallel_tool_calls"] = False
    return fields


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": sent_name(tool.name), "parameters": tool.parameters}
    if tool.description:
        function["description"] = tool.description
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _sampling(request: GenerationRequest, model: TargetModel) -> dict[str, Any]:
    """What the client set, where OpenAI has a word for it; models that do not reason refuse to be told how hard to."""
    set_by_client = given(request.raw)
    names = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")
    fields = {name: getattr(set_by_client, name) for name in names if getattr(set_by_client, name) is not None}
    if fields.get("seed") == -1:
        del fields["seed"]  # llama-server's word for any
    if request.sampling.logprobs is not None and request.dialect is not Dialect.MESSAGES:
        fields |= {"logprobs": True, "top_logprobs": request.sampling.logprobs}
    effort = request.template_options.get("reasoning_effort")
    if isinstance(effort, str) and "reasoning" in model.capabilities:
        fields["reasoning_effort"] = effort
    return fields


def _response_format(request: GenerationRequest) -> dict[str, Any]:
    constraint = request.constraint
    assert constraint is not None
    if constraint.kind == "json_object":
        return {"type": "json_object"}
    if constraint.kind == "json_schema":
        schema = msgspec.json.decode(constraint.body)
        return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    raise ApiError(
        ErrorKind.INVALID_REQUEST,
        f"a {constraint.kind} grammar cannot be enforced by the upstream of {request.model!r}: use a JSON schema",
    )
