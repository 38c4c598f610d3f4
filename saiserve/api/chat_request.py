"""Chat Completions, incoming: what a body means as a `GenerationRequest`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from saiserve.api.body import decode, invalid
from saiserve.api.chat_calls import CallForm
from saiserve.api.chat_schema import (
    ChatBody,
    ChatMessageBody,
    ContentPart,
    ToolCallBody,
)
from saiserve.api.chat_tools import allowed_of, tool_choice_of, tools_of
from saiserve.api.context import Origin
from saiserve.api.images import image_from_url
from saiserve.api.sampling import (
    choices_of,
    grammar_constraint,
    max_tokens_of,
    sampling_of,
    schema_constraint,
    stop_of,
)
from saiserve.chat.request import (
    Dialect,
    GenerationRequest,
    Message,
    Part,
    Role,
    TextPart,
    ToolCall,
)
from saiserve.engines.messages import Constraint

ROLES: dict[str, Role] = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
    "function": Role.TOOL,
}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A decoded body: the request, and the form in which the client wants calls back."""

    request: GenerationRequest
    form: CallForm
    verbose: bool = False
    """Whether the client wants to see the rendered prompt (llama-server's `verbose`)."""
    timings_per_token: bool = False


def decode_chat(data: bytes, origin: Origin) -> ChatRequest:
    """Return what a body asks for.

    Raises:
        ApiError: 400; `param` names the field at fault.
    """
    body = decode(data, ChatBody)
    if any(modality != "text" for modality in body.modalities or ()):
        raise invalid("modalities: only text is made here.", "modalities")
    custom = frozenset(tool.custom.name for tool in body.tools if tool.custom is not None)
    return ChatRequest(
        _request(body, data, origin),
        CallForm(legacy=not body.tools and bool(body.functions), custom=custom),
        verbose=body.verbose,
        timings_per_token=body.timings_per_token,
    )


def _request(body: ChatBody, data: bytes, origin: Origin) -> GenerationRequest:
    messages = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(body.messages))
    tools = allowed_of(body, tools_of(body))
    return GenerationRequest(
        id=origin.request_id,
        dialect=Dialect.CHAT,
        model=origin.model(body.model),
        sampling=sampling_of(body, origin.draw_seed, _logprobs(body)),
        messages=messages,
        max_tokens=_max_tokens(body),
        stop=stop_of(body.stop),
        choices=choices_of(body.n),
        tools=tools,
        tool_choice=tool_choice_of(body, tools),
        constraint=_constraint(body),
        stream=body.stream,
        stream_usage=body.stream_options is not None and body.stream_options.include_usage,
        continue_final=_continues_final(body, messages),
        conversation=body.prompt_cache_key or origin.conversation,
        key_name=origin.key_name,
        template_options=_template_options(body),
        reasoning_tokens=_reasoning_tokens(body),
        raw=data,
        created=origin.created,
        progress=body.return_progress and body.stream,
        is_fresh=not body.cache_prompt,
    )


def _continues_final(body: ChatBody, messages: tuple[Message, ...]) -> bool:
    if body.continue_final_message and body.add_generation_prompt:
        raise invalid(
            "continue_final_message: cannot be true together with add_generation_prompt.", "continue_final_message"
        )
    return continues_final(messages, wanted=body.continue_final_message)


def continues_final(messages: tuple[Message, ...], *, wanted: bool | None) -> bool:
    """Whether the last message is an assistant's to go on with; a client may say that it is not.

    Raises:
        ApiError: 400 when it was asked for and the last message is not the assistant's.
    """
    possible = bool(messages) and messages[-1].role is Role.ASSISTANT and not messages[-1].tool_calls
    if wanted and not possible:
        raise invalid(
            "continue_final_message: the last message must be an assistant message without tool calls.",
            "continue_final_message",
        )
    return possible if wanted is None else wanted


def _message(body: ChatMessageBody, at: str) -> Message:
    role = ROLES.get(body.role)
    if role is None:
        raise invalid(f"{at}.role: {body.role[:40]!r} is not one of {', '.join(ROLES)}.", f"{at}.role")
    calls = _calls(body, at)
    parts = _parts(body, at)
    if parts is None:
        if role is not Role.ASSISTANT or not (calls or body.refusal or body.reasoning_content):
            raise invalid(f"{at}.content: this field is required.", f"{at}.content")
        parts = (TextPart(body.refusal),) if body.refusal else ()
    if calls and role is not Role.ASSISTANT:
        raise invalid(f"{at}.tool_calls: only assistant messages call tools.", f"{at}.tool_calls")
    if body.role == "tool" and not body.tool_call_id:
        raise invalid(f"{at}.tool_call_id: this field is required.", f"{at}.tool_call_id")
    reasoning = body.reasoning_content or (body.reasoning if isinstance(body.reasoning, str) else "")
    return Message(
        role=role,
        parts=parts,
        name=body.name,
        reasoning=reasoning,
        tool_calls=calls,
        tool_call_id=body.tool_call_id or (body.name if body.role == "function" else ""),
    )


def _parts(body: ChatMessageBody, at: str) -> tuple[Part, ...] | None:
    if body.content is None:
        return None
    if isinstance(body.content, str):
        return (TextPart(body.content),)
    return tuple(_part(part, f"{at}.content[{index}]") for index, part in enumerate(body.content))


def _part(part: ContentPart, at: str) -> Part:
    match part.type:
        case "text" | "input_text" | "output_text":
            if part.text is None:
                raise invalid(f"{at}.text: this field is required.", f"{at}.text")
            return TextPart(part.text)
        case "refusal":
            return TextPart(part.refusal or "")
        case "image_url":
            if part.image_url is None:
                raise invalid(f"{at}.image_url: this field is required.", f"{at}.image_url")
            url = part.image_url if isinstance(part.image_url, str) else part.image_url.url
            return image_from_url(url, f"{at}.image_url")
    raise invalid(f"{at}.type: {part.type[:40]!r} parts are not taken here; text and image_url are.", f"{at}.type")


def _calls(body: ChatMessageBody, at: str) -> tuple[ToolCall, ...]:
    calls = [_call(call, f"{at}.tool_calls[{index}]") for index, call in enumerate(body.tool_calls)]
    if body.function_call is not None:
        call = body.function_call
        calls.append(ToolCall(id=call.name, name=call.name, arguments=_arguments(call.arguments)))
    return tuple(calls)


def _call(call: ToolCallBody, at: str) -> ToolCall:
    if call.custom is not None:
        arguments = msgspec.json.encode({"input": call.custom.input}).decode()
        return ToolCall(id=call.id, name=call.custom.name, arguments=arguments)
    if call.function is None:
        raise invalid(f"{at}.function: this field is required.", f"{at}.function")
    return ToolCall(id=call.id, name=call.function.name, arguments=_arguments(call.function.arguments))


def _arguments(arguments: str | dict[str, Any]) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs: needs logprobs to be true.", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _max_tokens(body: ChatBody) -> int | None:
    if body.max_completion_tokens is not None:
        return max_tokens_of(body.max_completion_tokens, "max_completion_tokens")
    return max_tokens_of(body.max_tokens, "max_tokens")


def _constraint(body: ChatBody) -> Constraint | None:
    given = body.response_format
    if given is None or given.type == "text":
        return grammar_constraint(body)
    if body.grammar or body.json_schema is not None:
        raise invalid("response_format: cannot be combined with grammar or json_schema.", "response_format")
    if given.type == "json_object":
        return schema_constraint(given.schema) if given.schema is not None else Constraint("json_object")
    if given.type == "json_schema":
        schema = given.json_schema.schema if given.json_schema is not None else given.schema
        if schema is None:
            at = "response_format.json_schema.schema"
            raise invalid(f"{at}: this field is required; it holds the schema itself, beside `name` and `strict`.", at)
        return schema_constraint(schema)
    raise invalid(
        f"response_format.type: {given.type[:40]!r} is not one of text, json_object, json_schema.",
        "response_format.type",
    )


def _reasoning_tokens(body: ChatBody) -> int | None:
    """Return llama-server's bound on reasoning; -1 is none."""
    given = body.thinking_budget_tokens if body.reasoning_budget_tokens is None else body.reasoning_budget_tokens
    return None if given == -1 else given


def _template_options(body: ChatBody) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if body.reasoning_effort is not None:
        options["reasoning_effort"] = body.reasoning_effort
        options["enable_thinking"] = body.reasoning_effort != "none"
    if _reasoning_tokens(body) == 0:
        options["enable_thinking"] = False
    if body.add_generation_prompt is False:
        options["add_generation_prompt"] = False
    return options | (body.chat_template_kwargs or {})
