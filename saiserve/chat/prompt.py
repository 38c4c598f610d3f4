"""A canonical request as the prompt an engine takes: messages in the plain dicts chat templates expect."""

from __future__ import annotations

import json
from typing import Any

from saiserve.chat.request import GenerationRequest, ImagePart, Message, Part, TextPart, Tool, ToolCall, ToolChoiceMode
from saiserve.engines.messages import Prompt


def prompt_of(request: GenerationRequest) -> Prompt:
    """The prompt of a request. With tool choice `none` the tools are not shown to the model."""
    if request.messages is None:
        return Prompt(text=request.prompt_text, tokens=request.prompt_tokens, template_options=request.template_options)
    shown = () if request.tool_choice.mode is ToolChoiceMode.NONE else request.tools
    return Prompt(
        messages=tuple(_message(message) for message in request.messages),
        tools=tuple(_tool(tool) for tool in shown),
        add_generation_prompt=not request.continue_final
        and request.template_options.get("add_generation_prompt", True) is not False,
        continue_final=request.continue_final,
        template_options=request.template_options,
    )


def _message(message: Message) -> dict[str, Any]:
    has_images = any(isinstance(part, ImagePart) for part in message.parts)
    content: Any = [_part(part) for part in message.parts] if has_images else message.text
    plain: dict[str, Any] = {"role": message.role.value, "content": content}
    if message.name:
        plain["name"] = message.name
    if message.reasoning:
        plain["reasoning_content"] = message.reasoning
    if message.tool_calls:
        plain["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": part.data_uri}}


def _call(call: ToolCall) -> dict[str, Any]:
    """Arguments as an object where they are one, because templates print them with `tojson`."""
    try:
        arguments = json.loads(call.arguments) if call.arguments else {}
    except ValueError:
        arguments = call.arguments
    if not isinstance(arguments, dict):
        arguments = call.arguments
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
