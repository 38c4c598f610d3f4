"""Anthropic Messages, incoming: what a body means as a `GenerationRequest`.

System messages stay where the client put them; a billing header meant for Anthropic's own servers is left out of the
prompt, `raw` keeps it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from saiserve.api.body import decode, invalid
from saiserve.api.chat_request import continues_final
from saiserve.api.context import Origin
from saiserve.api.messages_blocks import messages_of
from saiserve.api.messages_schema import THINKING, Block, CountBody, MessagesBody
from saiserve.api.messages_tools import changes_of, tool_choice_of, tools_of, unserved_tools_note
from saiserve.api.sampling import (
    MIN_P_DEFAULT,
    TEMPERATURE_DEFAULT,
    TOP_K_DEFAULT,
    TOP_P_DEFAULT,
    schema_constraint,
    stop_of,
)
from saiserve.chat.request import Dialect, GenerationRequest, Message, Role, TextPart
from saiserve.engines.messages import Constraint, Sampling

BILLING_PREFIX = "x-anthropic-billing-header:"
"""A system block with this start changes from run to run and is not for the model."""
INTERLEAVED = "interleaved-thinking"
"""The beta by which a thinking budget is one of a whole turn with its tool calls."""


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
    changes = changes_of(body.messages)
    given = [*body.tools, *changes.defined]
    tools = tools_of(given, changes)
    note = unserved_tools_note(given)
    system = _system(body.system)
    if note:
        system = (*system, Message(Role.SYSTEM, (TextPart(note),)))
    messages = system
    for index, message in enumerate(body.messages):
        messages += tuple(messages_of(message, f"messages[{index}]"))
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
