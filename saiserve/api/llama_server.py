"""llama-server's own routes, in its shapes, because its users move here: tokens, templates, properties, slots."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from saiserve.api.body import decode
from saiserve.api.chat_request import decode_chat
from saiserve.api.context import Api, decoded, find_card
from saiserve.api.http import Call, Reply, json_reply
from saiserve.api.long_reply import SLICE_ITEMS, LongReply, array_parts, json_in_pieces
from saiserve.api.native_reply import default_settings
from saiserve.api.prompts import known_ids, text_of, text_request
from saiserve.api.timings import FINGERPRINT
from saiserve.engines.packed import runs_of
from saiserve.errors import ApiError, ErrorKind

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]


class TokenizeBody(msgspec.Struct):
    """The body of `POST /tokenize`."""

    content: str
    model: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(msgspec.Struct):
    """The body of `POST /detokenize`."""

    tokens: list[TokenId]
    model: str | None = None


async def tokenize(api: Api, call: Call) -> Reply | LongReply:
    """`POST /tokenize`: token ids, or ids with their pieces."""
    body = await decoded(call, decode, TokenizeBody)
    if not body.content:
        return json_reply({"tokens": []})
    options = {"add_special": body.add_special, "parse_special": body.parse_special}
    origin = api.origin(call)
    request = text_request(origin.model(body.model), origin, text=body.content, options=options)
    counted = await api.service.count(request, want_tokens=True)
    ids = known_ids(counted, request.model)
    if body.with_pieces:
        shown: Iterator[list[Any]] = (
            [{"id": token, "piece": _piece(piece)} for token, piece in zip(*run, strict=True)]
            for run in runs_of(counted, SLICE_ITEMS)
        )
    else:
        shown = (list(ids[at : at + SLICE_ITEMS]) for at in range(0, len(ids), SLICE_ITEMS))
    return await json_in_pieces(chain((b'{"tokens":',), array_parts(shown), (b"}",)))


async def detokenize(api: Api, call: Call) -> Reply:
    """`POST /detokenize`."""
    body = await decoded(call, decode, DetokenizeBody)
    if not body.tokens:
        return json_reply({"content": ""})
    origin = api.origin(call)
    request = text_request(origin.model(body.model), origin, tokens=tuple(body.tokens))
    return json_reply({"content": await text_of(api, request, must_fit=False)})


async def apply_template(api: Api, call: Call) -> Reply:
    """`POST /apply-template`: the prompt a chat body would become."""
    asked = await decoded(call, decode_chat, api.origin(call))
    request = api.prepared(await api.seeing(asked.request)).request
    counted = await api.service.count(request, want_text=True)
    if counted.text is None:
        raise ApiError(ErrorKind.NOT_SUPPORTED, f"The template of the model {request.model} is not at hand here.")
    return json_reply({"prompt": counted.text})


async def count_chat_tokens(api: Api, call: Call) -> Reply:
    """`POST /v1/chat/completions/input_tokens`."""
    asked = await decoded(call, decode_chat, api.origin(call))
    request = api.prepared(await api.seeing(asked.request)).request
    counted = await api.service.count(request)
    return json_reply({"object": "response.input_tokens", "input_tokens": counted.tokens})


async def props(api: Api, call: Call) -> Reply:
    """`GET /props`: what llama-server says of itself; `?model=` chooses among several."""
    cards = api.service.models()
    wanted = call.query.get("model")
    card = find_card(cards, wanted) if wanted else next((card for card in cards if card.state == "ready"), None)
    if card is None:
        raise ApiError(ErrorKind.MODEL_UNAVAILABLE, "No such model is ready here.", retry_after_s=2)
    sees = "vision" in card.capabilities
    return json_reply(
        {
            "default_generation_settings": {
                "id": 0,
                "id_task": -1,
                "n_ctx": card.context_tokens,
                "is_processing": False,
                "params": default_settings(card.id),
            },
            "total_slots": card.lanes,
            "model_alias": card.id,
            "model_path": card.path or f"{card.id}.gguf",
            "modalities": {"vision": sees, "video": False, "audio": False},
            "chat_template": card.chat_template,
            "chat_template_caps": dict(card.template_caps),
            "build_info": FINGERPRINT,
            "is_sleeping": False,
        }
    )


async def slots(api: Api, call: Call) -> Reply:
    """`GET /slots`: lanes as slots, as many of them at work as are busy; which request is in which is not told."""
    listed: list[dict[str, Any]] = []
    busy = _busy(api.service.cluster_state())
    for card in api.service.models():
        for lane in range(card.lanes):
            is_processing = lane < busy.get(card.id, 0)
            slot = {"id": len(listed), "n_ctx": card.context_tokens, "model": card.id, "is_processing": is_processing}
            listed.append(slot)
    if call.query.get("fail_on_no_slot") and all(slot["is_processing"] for slot in listed):
        raise ApiError(ErrorKind.BUSY, "No slot is free.", retry_after_s=1)
    return json_reply(listed)


def _busy(state: dict[str, Any]) -> dict[str, float]:
    """Return how many lanes of each model are at work, over all members; who is not alive tells none."""
    models = [model for member in state["members"] for model in member.get("models", ())]
    busy: dict[str, float] = {}
    for model in models:
        busy[model["id"]] = busy.get(model["id"], 0) + (model["busy"] or 0)
    return busy


def _piece(piece: bytes) -> str | list[int]:
    """Return a piece as text, or as bytes when it is no whole text."""
    try:
        return piece.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return list(piece)
