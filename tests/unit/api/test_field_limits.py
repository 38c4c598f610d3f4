"""Every bounded field of the public APIs at its edges: the edge is taken, what lies beyond is 400 and named, null is absent."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from saiserve.api.chat_schema import ChatBody
from saiserve.api.completions import CompletionBody
from saiserve.api.embeddings import EmbeddingsBody
from saiserve.api.messages_schema import CountBody, MessagesBody
from saiserve.api.native import InfillBody, NativeBody
from saiserve.api.responses_schema import ResponsesBody
from saiserve.errors import ApiError, ErrorKind
from tests.unit.api.field_bounds import DECODERS, LIMITS, ORIGIN, ask

ROWS = [(dialect, *row) for dialect, rows in LIMITS.items() for row in rows]


@pytest.mark.parametrize(("dialect", "name", "good", "bad", "beside"), ROWS, ids=[f"{r[0]}-{r[1]}" for r in ROWS])
def test_a_field_is_taken_up_to_its_edges_and_named_beyond(
    dialect: str, name: str, good: list[Any], bad: list[Any], beside: dict[str, Any]
) -> None:
    for value in good:
        ask(dialect, {**beside, name: value})
    for value in bad:
        with pytest.raises(ApiError) as caught:  # noqa: PT012  # or the value that was taken would not be named
            ask(dialect, {**beside, name: value})
            pytest.fail(f"{name} {value!r} was taken")
        assert caught.value.kind is ErrorKind.INVALID_REQUEST
        assert (caught.value.param or "").startswith(name), (value, caught.value.param)


BODIES: dict[str, type[msgspec.Struct]] = {
    "chat": ChatBody,
    "completions": CompletionBody,
    "embeddings": EmbeddingsBody,
    "responses": ResponsesBody,
    "messages": MessagesBody,
    "count_tokens": CountBody,
    "native": NativeBody,
    "infill": InfillBody,
}
SAME = {"count_tokens": "messages", "infill": "native"}
"""Dialects whose other fields are those of another, struct and all."""


@pytest.mark.parametrize("dialect", list(BODIES))
def test_every_field_of_every_body_has_its_row(dialect: str) -> None:
    rows = {row[0] for row in (*LIMITS[dialect], *LIMITS.get(SAME.get(dialect, ""), ()))}
    assert {field.name for field in msgspec.structs.fields(BODIES[dialect])} <= rows


OPTIONAL = sorted({(dialect, name) for dialect, name, *_ in ROWS if name not in DECODERS[dialect][1]})


@pytest.mark.parametrize(("dialect", "name"), OPTIONAL)
def test_null_is_absent(dialect: str, name: str) -> None:
    ask(dialect, {name: None})


@pytest.mark.parametrize("dialect", list(DECODERS))
def test_a_field_nobody_knows_is_ignored(dialect: str) -> None:
    ask(dialect, {"safeguards": {"x": [1]}, "a field": None})


@pytest.mark.parametrize(
    ("dialect", "missing"), [(dialect, name) for dialect, (_, base) in DECODERS.items() for name in base]
)
def test_what_is_required_is_missed_by_name(dialect: str, missing: str) -> None:
    decoder, base = DECODERS[dialect]
    body = {name: value for name, value in base.items() if name != missing}
    if (dialect, missing) in {("responses", "input"), ("embeddings", "model")}:
        decoder(json.dumps(body).encode(), ORIGIN)
        return
    with pytest.raises(ApiError) as caught:
        decoder(json.dumps(body).encode(), ORIGIN)
    assert caught.value.param == missing
