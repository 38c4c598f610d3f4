"""The handlers of the OpenAI-shaped generation routes."""

from __future__ import annotations

from saiserve.api.chat_reply import ChatCollector, ChatStreamEncoder
from saiserve.api.chat_request import decode_chat
from saiserve.api.completions import CompletionCollector, CompletionStreamEncoder, decode_completion
from saiserve.api.context import Api, decoded
from saiserve.api.http import Call
from saiserve.api.sse import Streamed, Whole


async def create_chat(api: Api, call: Call) -> Streamed | Whole:
    """`POST /v1/chat/completions`."""
    asked = await decoded(call, decode_chat, api.origin(call))
    request = asked.request
    prepared = api.prepared(request)
    completion_id = f"chatcmpl-{request.id}"
    if request.stream:
        encoder = ChatStreamEncoder(
            completion_id=completion_id,
            created=request.created,
            model=request.model,
            choices=request.choices,
            usage=request.stream_usage,
            form=asked.form,
        )
        return Streamed(api.service, prepared, encoder, api.keepalive_s)
    collector = ChatCollector(
        completion_id=completion_id,
        created=request.created,
        model=request.model,
        choices=request.choices,
        form=asked.form,
    )
    return Whole(api.service, prepared, collector)


async def create_completion(api: Api, call: Call) -> Streamed | Whole:
    """`POST /v1/completions`."""
    request = await decoded(call, decode_completion, api.origin(call))
    prepared = api.prepared(request)
    completion_id = f"cmpl-{request.id}"
    if request.stream:
        encoder = CompletionStreamEncoder(
            completion_id=completion_id,
            created=request.created,
            model=request.model,
            choices=request.choices,
            usage=request.stream_usage,
        )
        return Streamed(api.service, prepared, encoder, api.keepalive_s)
    collector = CompletionCollector(
        completion_id=completion_id, created=request.created, model=request.model, choices=request.choices
    )
    return Whole(api.service, prepared, collector)
