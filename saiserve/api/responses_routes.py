"""The handlers of the Responses routes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import trio

from saiserve.api.body import decode, invalid, validate
from saiserve.api.context import Api, decoded
from saiserve.api.http import Call, Reply, json_reply
from saiserve.api.responses_items import messages_of
from saiserve.api.responses_references import resolved
from saiserve.api.responses_reply import ResponseCollector, ResponseEncoder
from saiserve.api.responses_request import ResponseRequest, decode_response
from saiserve.api.responses_schema import Item, ResponsesBody
from saiserve.api.sse import Streamed, Whole
from saiserve.chat.request import Message
from saiserve.errors import ApiError


async def create_response(api: Api, call: Call) -> Streamed | Whole:
    """`POST /v1/responses`."""
    body = await _body(api, call)
    history = await _history(api, call, body)
    asked = await _decoded(api, call, history, body)
    prepared = api.prepared(asked.request)
    encoder = ResponseEncoder(
        response_id=api.responses.id_for(asked.request.id),
        created=asked.request.created,
        echo=asked.echo,
        custom_tools=asked.custom_tools,
        summarise=asked.summarise,
        carry_reasoning=asked.carry_reasoning,
        on_final=partial(_keep, api, asked, history) if asked.store else None,
        clock=trio.current_time if asked.timings_per_token or asked.request.progress else None,
    )
    if asked.request.stream:
        return Streamed(api.service, prepared, encoder, api.keepalive_s)
    return Whole(api.service, prepared, ResponseCollector(encoder))


async def _body(api: Api, call: Call) -> ResponsesBody:
    """Return the body with the items in place that it only names."""
    body: ResponsesBody = await decoded(call, decode, ResponsesBody)
    if isinstance(body.input, list):
        body.input = await resolved(body.input, partial(api.responses.get, key_name=call.key_name))
    return body


async def _decoded(api: Api, call: Call, history: tuple[Message, ...], body: ResponsesBody) -> ResponseRequest:
    """Return what a body asks for, its images in place also in what is kept of it."""
    asked = await decoded(call, decode_response, api.origin(call), history, body)
    request = await api.seeing(asked.request)
    messages = request.messages or ()
    return replace(asked, request=request, new_messages=messages[len(messages) - len(asked.new_messages) :])


async def _history(api: Api, call: Call, body: ResponsesBody) -> tuple[Message, ...]:
    if not body.previous_response_id:
        return ()
    try:
        kept = await api.responses.get(body.previous_response_id, call.key_name)
    except ApiError as error:
        raise ApiError(
            error.kind, error.message, param="previous_response_id", retry_after_s=error.retry_after_s
        ) from error
    return kept.messages


def _keep(api: Api, asked: ResponseRequest, history: tuple[Message, ...], body: dict[str, Any]) -> None:
    if body["status"] == "failed":
        return
    said = messages_of(validate(body["output"], list[Item], "output"))
    messages = (*history, *asked.new_messages, *said)
    api.responses.put(body, asked.input_items, messages, asked.request.key_name)


async def count_input_tokens(api: Api, call: Call) -> Reply:
    """`POST /v1/responses/input_tokens`."""
    body = await _body(api, call)
    asked = await _decoded(api, call, await _history(api, call, body), body)
    counted = await api.service.count(api.prepared(asked.request).request)
    return json_reply({"object": "response.input_tokens", "input_tokens": counted.tokens})


async def get_response(api: Api, call: Call) -> Reply:
    """`GET /v1/responses/{id}`."""
    kept = await api.responses.get(call.path_params["id"], call.key_name)
    return json_reply(kept.body)


async def delete_response(api: Api, call: Call) -> Reply:
    """`DELETE /v1/responses/{id}`."""
    response_id = call.path_params["id"]
    await api.responses.delete(response_id, call.key_name)
    return json_reply({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(api: Api, call: Call) -> Reply:
    """`POST /v1/responses/{id}/cancel`: nothing runs in the background here, so there is nothing to cancel."""
    await api.responses.get(call.path_params["id"], call.key_name)
    raise invalid("Only background responses can be cancelled, and none are served here; close the connection instead.")


async def list_input_items(api: Api, call: Call) -> Reply:
    """`GET /v1/responses/{id}/input_items`."""
    items = (await api.responses.get(call.path_params["id"], call.key_name)).input_items
    named = [{"id": f"item_{place}", **item} for place, item in enumerate(items) if isinstance(item, dict)]
    first, last = (named[0]["id"], named[-1]["id"]) if named else (None, None)
    return json_reply({"object": "list", "data": named, "first_id": first, "last_id": last, "has_more": False})
