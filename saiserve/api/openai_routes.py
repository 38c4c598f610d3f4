"""The handlers of the OpenAI-shaped generation routes."""

from __future__ import annotations

from dataclasses import replace

import trio

from saiserve.api.chat_reply import ChatCollector, ChatHead, ChatStreamEncoder
from saiserve.api.chat_request import decode_chat
from saiserve.api.completions import (
    CompletionCollector,
    CompletionRequest,
    CompletionStreamEncoder,
    decode_completion,
)
from saiserve.api.context import Api, decoded
from saiserve.api.http import Call
from saiserve.api.infill import marks_of
from saiserve.api.prompts import PlainPrompt, text_of, with_prompt
from saiserve.api.service import Answering
from saiserve.api.several import Several
from saiserve.api.sse import Streamed, Whole
from saiserve.api.unwritten import Unwritten
from saiserve.chat.request import GenerationRequest


async def create_chat(api: Api, call: Call) -> Streamed | Whole:
    """`POST /v1/chat/completions`."""
    asked = await decoded(call, decode_chat, api.origin(call))
    request = await api.seeing(asked.request)
    prepared = api.prepared(request)
    head = ChatHead(f"chatcmpl-{request.id}", request.created, request.model)
    if asked.verbose:
        counted = await api.service.count(prepared.request, want_text=True)
        head = replace(head, prompt=counted.text)
    if request.stream:
        encoder = ChatStreamEncoder(
            head,
            choices=request.choices,
            usage=request.stream_usage,
            form=asked.form,
            clock=trio.current_time if asked.timings_per_token or request.progress else None,
            timings_per_token=asked.timings_per_token,
        )
        return Streamed(api.service, prepared, encoder, api.keepalive_s)
    return Whole(api.service, prepared, ChatCollector(head, choices=request.choices, form=asked.form))


async def create_completion(api: Api, call: Call) -> Streamed | Whole:
    """`POST /v1/completions`."""
    asked = await decoded(call, decode_completion, api.origin(call))
    requests = await _requests(api, asked)
    base = requests[0]
    choices = base.choices * len(requests)
    answering: Answering = api.service
    shown = zip(asked.prompts, requests, strict=True)
    openings = [prompt.text or await text_of(api, one) for prompt, one in shown] if asked.echo else None
    if asked.is_unwritten:
        answering = Unwritten(api.service, requests, openings)
    elif len(requests) > 1 or asked.echo:
        answering = Several(api.service, requests, openings)
    prepared = api.prepared(base)
    completion_id = f"cmpl-{base.id}"
    if base.stream:
        encoder = CompletionStreamEncoder(
            completion_id=completion_id,
            created=base.created,
            model=base.model,
            choices=choices,
            usage=base.stream_usage,
            clock=trio.current_time if asked.timings_per_token else None,
        )
        return Streamed(answering, prepared, encoder, api.keepalive_s)
    collector = CompletionCollector(
        completion_id=completion_id, created=base.created, model=base.model, choices=choices
    )
    return Whole(answering, prepared, collector)


async def _requests(api: Api, asked: CompletionRequest) -> list[GenerationRequest]:
    """Return one request per prompt, with an id of its own."""
    prompts = asked.prompts
    if asked.suffix:
        marks = await marks_of(api, asked.request, asked.request.model)
        prompts = tuple(PlainPrompt(text=marks.around(prompt.text or "", asked.suffix)) for prompt in prompts)
    requests = [await with_prompt(api, asked.request, prompt) for prompt in prompts]
    return [replace(one, id=f"{one.id}.{place}" if place else one.id) for place, one in enumerate(requests)]
