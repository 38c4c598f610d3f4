"""The handlers of the Anthropic-shaped routes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from saiserve.api.context import Api, decoded
from saiserve.api.http import Call, Reply, json_reply
from saiserve.api.messages_reply import MessageCollector, MessageStreamEncoder
from saiserve.api.messages_request import check_budget, decode_count, decode_messages
from saiserve.api.sse import Streamed, Whole

FORWARDED: Final = ("anthropic-version", "anthropic-beta")
"""Headers that say how a body is meant; an Anthropic upstream gets them with it."""


async def create_message(api: Api, call: Call) -> Streamed | Whole:
    """`POST /v1/messages`."""
    request = await api.seeing(await decoded(call, decode_messages, api.origin(call)))
    check_budget(request, call.headers.get("anthropic-beta", ""))
    request = replace(request, headers=tuple((name, call.headers[name]) for name in FORWARDED if name in call.headers))
    message_id = f"msg_{request.id}"
    thinking = bool(request.template_options.get("enable_thinking"))
    prepared = api.prepared(request)
    if request.stream:
        encoder = MessageStreamEncoder(
            message_id=message_id, model=request.model, thinking=thinking, request_id=call.request_id
        )
        return Streamed(api.service, prepared, encoder, api.keepalive_s)
    collector = MessageCollector(message_id=message_id, model=request.model, thinking=thinking)
    return Whole(api.service, prepared, collector)


async def count_message_tokens(api: Api, call: Call) -> Reply:
    """`POST /v1/messages/count_tokens`."""
    request = await api.seeing(await decoded(call, decode_count, api.origin(call)))
    counted = await api.service.count(api.prepared(request).request)
    return json_reply({"input_tokens": counted.tokens})
