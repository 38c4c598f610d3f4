"""The handlers of llama-server's native generation routes."""

from __future__ import annotations

from dataclasses import replace

import trio

from saiserve.api.body import decode
from saiserve.api.context import Api, decoded
from saiserve.api.http import Call
from saiserve.api.infill import infill_prompt
from saiserve.api.native import InfillBody, NativeRequest, decode_native, native_request
from saiserve.api.native_reply import NativeCollector, NativeShape, NativeStreamEncoder
from saiserve.api.prepare import Prepared
from saiserve.api.prompts import text_of, with_prompt, with_text_bias
from saiserve.api.several import Several
from saiserve.api.sse import Streamed, Whole
from saiserve.chat.events import AnswerEvent


async def complete(api: Api, call: Call) -> Streamed | Whole:
    """`POST /completion` and `/completions`."""
    return await _answer(api, await decoded(call, decode_native, api.origin(call)))


async def infill(api: Api, call: Call) -> Streamed | Whole:
    """`POST /infill`: the text between a prefix and a suffix, by a model that was trained to find it."""
    body = await decoded(call, decode, InfillBody)
    origin = api.origin(call)
    prompt = await infill_prompt(api, origin, origin.model(body.model), body)
    return await _answer(api, native_request(body, (prompt,), origin, call.body))


async def _answer(api: Api, asked: NativeRequest) -> Streamed | Whole:
    base = await with_text_bias(api, asked.request, asked.text_bias)
    asked = replace(asked, request=base)
    requests = [
        replace(await with_prompt(api, base, prompt), id=f"{base.id}.{place}" if place else base.id)
        for place, prompt in enumerate(asked.prompts)
    ]
    texts = [await text_of(api, request) for request in requests]
    shape = NativeShape(asked, requests, texts)
    choices = len(requests) * base.choices
    several = Several(api.service, requests)
    prepared = Prepared(requests[0], _as_it_is)
    if base.stream:
        encoder = NativeStreamEncoder(shape, asked, choices, trio.current_time)
        return Streamed(several, prepared, encoder, api.keepalive_s)
    return Whole(several, prepared, NativeCollector(shape, asked, choices))


def _as_it_is(event: AnswerEvent) -> list[AnswerEvent]:
    return [event]
