"""Responses input: items that only name one of a kept response, put in its place.

An item's id holds the id of its response (see `saiserve.api.responses_reply`), so that the response is found at the node
that keeps it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from saiserve.api.body import invalid, validate
from saiserve.api.responses_items import is_reference
from saiserve.api.responses_schema import Item
from saiserve.api.responses_store import StoredResponse
from saiserve.errors import ApiError, ErrorKind

REFERENCED_MAX: Final = 64
"""Responses whose items one input may name."""


def references(items: Any) -> bool:
    """Whether an input, as the client wrote it, names items rather than holding them."""
    listed = items if isinstance(items, list) else []
    return any(item.get("type") == "item_reference" or set(item) <= {"type", "id"} for item in listed)


def response_id_of(item_id: str) -> str:
    """Return the id of the response that an item made here belongs to; empty when it was not made here."""
    _, first, rest = item_id.partition("_")
    middle, second, place = rest.rpartition("_")
    return f"resp_{middle}" if first and second and middle and place.isdigit() else ""


async def resolved(items: list[Item], fetch: Callable[[str], Awaitable[StoredResponse]]) -> list[Item]:
    """Return an input whose items are all there.

    Each may be named once, so that a short body cannot stand for a prompt without end.

    Raises:
        ApiError: 400, no kept response holds one, or it is named twice; 504 when its node does not answer.
    """
    if not any(is_reference(item) for item in items):
        return items
    kept: dict[str, dict[str, Any]] = {}
    named: set[str] = set()
    found: list[Item] = []
    for index, item in enumerate(items):
        at = f"input[{index}]"
        if not is_reference(item):
            found.append(item)
            continue
        if item.id in named:
            raise invalid(f"{at}: this item is named twice.", at)
        named.add(item.id)
        response_id = response_id_of(item.id)
        if response_id and response_id not in kept:
            if len(kept) >= REFERENCED_MAX:
                raise invalid(f"{at}: items of at most {REFERENCED_MAX} responses are looked up.", at)
            kept[response_id] = await _output_of(response_id, fetch)
        plain = kept.get(response_id, {}).get(item.id)
        if plain is None:
            raise invalid(f"{at}: no kept response holds this item; send the item itself.", at)
        found.append(validate(plain, Item, at))
    return found


async def _output_of(response_id: str, fetch: Callable[[str], Awaitable[StoredResponse]]) -> dict[str, Any]:
    """Return the items of a kept response by their ids; none when it is not kept."""
    try:
        stored = await fetch(response_id)
    except ApiError as error:
        if error.kind is ErrorKind.NOT_FOUND:
            return {}
        raise
    return {str(item.get("id")): item for item in stored.body["output"]}
