"""OpenAI Responses, incoming: what a body means, and what of it the response repeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from saiserve.api.body import invalid, parse_object, validate
from saiserve.api.chat_request import continues_final
from saiserve.api.context import Origin
from saiserve.api.responses_items import messages_of
from saiserve.api.responses_references import references
from saiserve.api.responses_schema import ResponsesBody
from saiserve.api.responses_tools import ToolSet, allowed_of, tool_choice_of, tool_set
from saiserve.api.sampling import MIN_P_DEFAULT, TEMPERATURE_DEFAULT, TOP_K_DEFAULT, TOP_P_DEFAULT, schema_constraint
from saiserve.chat.request import Dialect, GenerationRequest, Message, Role, TextPart
from saiserve.engines.messages import Constraint, Sampling


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A decoded body."""

    request: GenerationRequest
    echo: dict[str, Any]
    """Fields of the response that repeat the request."""
    custom_tools: frozenset[str]
    summarise: bool
    """Whether reasoning is shown as a summary rather than as reasoning text."""
    carry_reasoning: bool
    """Whether the client wants reasoning back in a form it can return (`reasoning.encrypted_content`)."""
    store: bool
    new_messages: tuple[Message, ...]
    """The messages of this request alone, without instructions and history."""
    input_items: list[Any]
    """The input as given, for `/input_items`."""
    timings_per_token: bool = False


def decode_response(
    data: bytes, origin: Origin, history: tuple[Message, ...] = (), body: ResponsesBody | None = None
) -> ResponseRequest:
    """Return what a body asks for; `history` is the conversation `previous_response_id` stands for.

    Raises:
        ApiError: 400; `param` names the field at fault.
    """
    raw = parse_object(data)
    body = body if body is not None else validate(raw, ResponsesBody)
    _check_unserved(body)
    tools = tool_set(body.tools, body.input)
    allowed = allowed_of(body.tool_choice, tools.tools)
    new_messages = messages_of(body.input)
    messages = (*_leading(body, tools), *history, *new_messages)
    seed = origin.draw_seed()
    request = GenerationRequest(
        id=origin.request_id,
        dialect=Dialect.RESPONSES,
        model=origin.model(body.model),
        sampling=Sampling(
            seed=seed,
            temperature=TEMPERATURE_DEFAULT if body.temperature is None else body.temperature,
            top_k=TOP_K_DEFAULT,
            top_p=TOP_P_DEFAULT if body.top_p is None else body.top_p,
            min_p=MIN_P_DEFAULT,
            logprobs=body.top_logprobs if "message.output_text.logprobs" in body.include else None,
        ),
        messages=messages,
        max_tokens=body.max_output_tokens,
        tools=allowed,
        tool_choice=tool_choice_of(body.tool_choice, allowed, tools.hosted, parallel=body.parallel_tool_calls),
        constraint=_constraint(body),
        stream=body.stream,
        stream_usage=True,
        continue_final=continues_final(messages, wanted=None),
        conversation=body.prompt_cache_key or origin.conversation,
        key_name=origin.key_name,
        template_options=_template_options(body),
        # An upstream does not know our stored responses, so it cannot be sent the client's own bytes then.
        raw=b"" if history or references(raw.get("input")) else data,
        created=origin.created,
        progress=body.return_progress and body.stream,
    )
    return ResponseRequest(
        request=request,
        echo=_echo(body, raw, request),
        custom_tools=tools.custom,
        summarise=body.reasoning is not None and body.reasoning.summary not in {"", "none"},
        carry_reasoning="reasoning.encrypted_content" in body.include,
        store=body.store,
        timings_per_token=body.timings_per_token,
        new_messages=new_messages,
        input_items=_items(raw.get("input")),
    )


def _check_unserved(body: ResponsesBody) -> None:
    if body.background:
        raise invalid("background: true is not served here; use stream.", "background")
    if body.conversation is not None:
        raise invalid("conversation: is not served here; use previous_response_id or send the history.", "conversation")
    if body.prompt is not None:
        raise invalid("prompt: templates are not kept here; send instructions and input.", "prompt")


def _leading(body: ResponsesBody, tools: ToolSet) -> tuple[Message, ...]:
    leading = [body.instructions] if body.instructions else []
    if tools.unserved:
        names = ", ".join(tools.unserved)
        leading.append(f"These tools are not available on this server: {names}. If one is needed, say so.")
    return tuple(Message(Role.SYSTEM, (TextPart(text),)) for text in leading)


def _constraint(body: ResponsesBody) -> Constraint | None:
    given = body.text.format if body.text is not None else None
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return Constraint("json_object")
    if given.type == "json_schema" and given.schema is not None:
        return schema_constraint(given.schema)
    raise invalid("text.format: must be text, json_object, or json_schema with a schema.", "text.format")


def _template_options(body: ResponsesBody) -> dict[str, Any]:
    effort = _effort(body)
    return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def _effort(body: ResponsesBody) -> str | None:
    """Return how hard to think: what the input last changed it to, else what the request says."""
    for item in reversed(body.input if isinstance(body.input, list) else []):
        if item.type == "configuration_update" and item.reasoning is not None and item.reasoning.effort is not None:
            return item.reasoning.effort
    return None if body.reasoning is None else body.reasoning.effort


def _echo(body: ResponsesBody, raw: dict[str, Any], request: GenerationRequest) -> dict[str, Any]:
    reasoning = raw.get("reasoning") or {}
    return {
        "model": request.model,
        "instructions": body.instructions,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "tool_choice": raw.get("tool_choice", "auto"),
        "tools": raw.get("tools", []),
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key or None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store,
        "text": raw.get("text") or {"format": {"type": "text"}},
        "top_logprobs": body.top_logprobs or 0,
        "truncation": body.truncation,
        "user": body.user or None,
        "background": False,
    }


def _items(given: Any) -> list[Any]:
    if isinstance(given, list):
        return given
    return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given or ""}]}]
