"""`GET /v1/models`: one body that OpenAI, Anthropic, llama-server and Codex readers all accept.

OpenAI reads `object` and `data[].id/object/created/owned_by`; Anthropic `data[].type/display_name/created_at/lifecycle`
and the paging fields; llama-server's users `data[].meta/status/aliases` and a top-level `models`; Codex its own records
under `models`, but only when it says `client_version`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from saiserve.api.body import invalid
from saiserve.api.context import Api, find_card, model_not_found
from saiserve.api.http import Call, Reply, json_reply
from saiserve.api.service import ModelCard

PAGE_MAX = 1_000
CODEX_CONTEXT_DEFAULT = 8_192
CODEX_INSTRUCTIONS = (
    "You are a coding agent working in the user's terminal. Use the tools you are given to read, change and run things; "
    "keep answers short and say what you did."
)
STATUS = {"ready": "loaded", "loading": "loading", "loadable": "unloaded", "unavailable": "unloaded"}


async def list_models(api: Api, call: Call) -> Reply:
    """Answer with a page of models; without paging parameters, with all."""
    cards = api.service.models()
    if "client_version" in call.query:
        return json_reply({"models": [_codex_record(place, card) for place, card in enumerate(cards)]})
    page, has_more = _page(cards, call)
    return json_reply(
        {
            "object": "list",
            "data": [model_object(card) for card in page],
            "has_more": has_more,
            "first_id": page[0].id if page else None,
            "last_id": page[-1].id if page else None,
            "models": [_llama_record(card) for card in page],
        }
    )


async def get_model(api: Api, call: Call) -> Reply:
    """Answer with one model by id or alias; ids may hold slashes."""
    wanted = str(call.path_params["id"])
    card = find_card(api.service.models(), wanted)
    if card is None:
        raise model_not_found(wanted)
    return json_reply(model_object(card))


def model_object(card: ModelCard) -> dict[str, Any]:
    """Return one model in every reader's fields at once."""
    created_at = datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "type": "model",
        "display_name": card.display_name or card.id,
        "parent": card.parent or None,
        "created_at": created_at,
        "lifecycle": "active",
        "max_input_tokens": card.context_tokens or None,
        "max_tokens": card.context_tokens or None,
        "context_window": card.context_tokens or None,
        "modalities": {"input": ["text", "image"] if "vision" in card.capabilities else ["text"], "output": ["text"]},
        "aliases": list(card.aliases),
        "tags": sorted(card.capabilities),
        "status": {
            "value": STATUS.get(card.state, "unloaded"),
            "state": card.state,
            **({"progress": card.progress} if card.progress is not None else {}),
        },
        "meta": {
            "vocab_type": 1,
            "n_vocab": card.vocabulary,
            "n_ctx_train": card.context_tokens,
            "n_embd": card.embedding_length,
            "n_params": card.parameters,
            "size": card.size_bytes,
        },
    }


def _page(cards: tuple[ModelCard, ...], call: Call) -> tuple[tuple[ModelCard, ...], bool]:
    """Cut a page as Anthropic's `limit`, `after_id`, `before_id` say."""
    query = call.query
    limit = PAGE_MAX
    if "limit" in query:
        text = query["limit"]
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= PAGE_MAX):
            raise invalid(f"limit: must be a number from 1 to {PAGE_MAX}.", "limit")
        limit = int(text)
    ids = [card.id for card in cards]
    start, end = 0, len(cards)
    if query.get("after_id") in ids:
        start = ids.index(query["after_id"]) + 1
    if query.get("before_id") in ids:
        end = ids.index(query["before_id"])
        start = max(start, end - limit)
    return cards[start : min(end, start + limit)], start + limit < end


def _llama_record(card: ModelCard) -> dict[str, Any]:
    capabilities = ["completion"] + (["multimodal"] if "vision" in card.capabilities else [])
    return {
        "name": card.id,
        "model": card.id,
        "modified_at": "",
        "size": str(card.size_bytes or ""),
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [""],
        "capabilities": capabilities,
        "parameters": "",
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "",
            "families": [""],
            "parameter_size": "",
            "quantization_level": "",
        },
    }


def _codex_record(place: int, card: ModelCard) -> dict[str, Any]:
    """Return one record of Codex's catalogue, with a prompt short enough for a small window."""
    window = card.context_tokens or CODEX_CONTEXT_DEFAULT
    return {
        "slug": card.id,
        "display_name": card.display_name or card.id,
        "description": f"{card.id}, served here",
        "supported_reasoning_levels": [],
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": True,
        "priority": place,
        "support_verbosity": False,
        "truncation_policy": {"mode": "bytes", "limit": max(2_000, window)},
        "experimental_supported_tools": [],
        "base_instructions": CODEX_INSTRUCTIONS,
        "context_window": window,
        "input_modalities": ["text", "image"] if "vision" in card.capabilities else ["text"],
        "supports_parallel_tool_calls": False,
        "supports_reasoning_summaries": False,
    }
