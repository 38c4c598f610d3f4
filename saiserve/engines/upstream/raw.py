"""A client's own body for a target of the same dialect, and what a client really set in it.

Only named fields change; all others keep the bytes they came in, known here or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

_Fields = dict[str, msgspec.Raw]
_fields = msgspec.json.Decoder(_Fields)


def with_fields(raw: bytes, changes: Mapping[str, Any], *, without: Iterable[str] = ()) -> bytes:
    """The body with some fields set and others left out. `raw` was validated at the border: it is a JSON object."""
    fields = _fields.decode(raw)
    for name in without:
        fields.pop(name, None)
    fields |= {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in changes.items()}
    return msgspec.json.encode(fields)


class Given(msgspec.Struct):
    """What a client set itself; None where it left the choice to the server. Ranges were checked at the border."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    user: str | None = None
    stream_options: dict[str, Any] | None = None


_given = msgspec.json.Decoder(Given)


def given(raw: bytes) -> Given:
    """What a body sets; nothing when there is no body or it is of another shape."""
    try:
        return _given.decode(raw)
    except msgspec.DecodeError:
        return Given()
