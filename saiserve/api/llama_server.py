"""llama-server's own routes, in its shapes, because its users move here: tokens, templates, properties, slots."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from saiserve.api.body import decode
from saiserve.api.chat_request import decode_chat
from saiserve.api.context import Api, Origin, decoded, find_card
from saiserve.api.http import Call, Reply, json_reply
from saiserve.chat.request import Dialect, GenerationRequest
from saiserve.engines.messages import Sampling
from saiserve.errors import ApiError, ErrorKind

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
BUILD_INFO = "saiserve"


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


async def tokenize(api: Api, call: Call) -> Reply:
    """`POST /tokenize`: token ids, or ids with their pieces."""
    body = await decoded(call, decode, TokenizeBody)
    if not body.content:
        return json_reply({"tokens": []})
    options = {"add_special": body.add_special, "parse_special": body.parse_special}
    request = _text_request(api.origin(call), body.model, text=body.content, options=options)
    counted = await api.service.count(request, want_tokens=True)
    if not body.with_pieces:
        return json_reply({"tokens": list(counted.ids or ())})
    pieces = zip(counted.ids or (), counted.pieces or (), strict=True)
    return json_reply({"tokens": [{"id": token, "piece": _piece(piece)} for token, piece in pieces]})


async def detokenize(api: Api, call: Call) -> Reply:
    """`POST /detokenize`."""
    body = await decoded(call, decode, DetokenizeBody)
    if not body.tokens:
        return json_reply({"content": ""})
    request = _text_request(api.origin(call), body.model, tokens=tuple(body.tokens))
    counted = await api.service.count(request, want_tokens=True)
    return json_reply({"content": b"".join(counted.pieces or ()).decode("utf-8", "replace")})


async def apply_template(api: Api, call: Call) -> Reply:
    """`POST /apply-template`: the prompt a chat body would become."""
    asked = await decoded(call, decode_chat, api.origin(call))
    request = api.prepared(asked.request).request
    counted = await api.service.count(request, want_text=True)
    return json_reply({"prompt": counted.text or ""})


async def count_chat_tokens(api: Api, call: Call) -> Reply:
    """`POST /v1/chat/completions/input_tokens`."""
    asked = await decoded(call, decode_chat, api.origin(call))
    request = api.prepared(asked.request).request
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
            "default_generation_settings": {"params": {}, "n_ctx": card.context_tokens},
            "total_slots": card.lanes,
            "model_alias": card.id,
            "model_path": "",
            "modalities": {"vision": sees, "video": False, "audio": False},
            "chat_template": card.chat_template,
            "chat_template_caps": {},
            "build_info": BUILD_INFO,
            "is_sleeping": False,
        }
    )


async def slots(api: Api, call: Call) -> Reply:
    """`GET /slots`: lanes as slots; which request is in which is not told."""
    lanes = [(card, lane) for card in api.service.models() for lane in range(card.lanes)]
    listed = [
        {"id": index, "n_ctx": card.context_tokens, "model": card.id, "is_processing": False}
        for index, (card, _) in enumerate(lanes)
    ]
    if not listed and call.query.get("fail_on_no_slot"):
        raise ApiError(ErrorKind.BUSY, "No slot is free.", retry_after_s=1)
    return json_reply(listed)


def _text_request(
    origin: Origin,
    model: str | None,
    *,
    text: str | None = None,
    tokens: tuple[int, ...] | None = None,
    options: dict[str, Any] | None = None,
) -> GenerationRequest:
    """Return a request that is only counted, never answered."""
    return GenerationRequest(
        id=origin.request_id,
        dialect=Dialect.COMPLETIONS,
        model=origin.model(model),
        sampling=Sampling(seed=0),
        prompt_text=text,
        prompt_tokens=tokens,
        key_name=origin.key_name,
        template_options=options or {},
    )


def _piece(piece: bytes) -> str | list[int]:
    """Return a piece as text, or as bytes when it is no whole text."""
    try:
        return piece.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return list(piece)
