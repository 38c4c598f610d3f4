"""Replies of many megabytes: others get their turn while one is made and sent, and it says what a short one says."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import trio

from saiserve.api.long_reply import SLICE_BYTES, LongReply, array_parts, json_in_pieces, list_parts, object_parts
from saiserve.chat.request import GenerationRequest
from saiserve.engines.messages import Counted, Embedded
from saiserve.engines.packed import pack
from tests.api.serving import serving
from tests.fakes.service import ScriptedService

TOKENS = 50_000
VECTORS = 4_000
SIZE = 48


@dataclass
class Long(ScriptedService):
    """Many tokens in a text, many vectors in an input."""

    number: float = 0.5

    async def count(self, request: GenerationRequest, **_options: Any) -> Counted:
        ids = range(TOKENS)
        return Counted(request.id, TOKENS, packed=pack(ids, [b"\xff" if one == 7 else b"p%d" % one for one in ids]))

    async def embed(self, *_given: Any, pooling: str = "", **_named: Any) -> Embedded:
        row = struct.pack(f"<{SIZE}f", *([self.number] * SIZE))
        vectors = (row * VECTORS, row) if pooling == "none" else (row,) * VECTORS
        return Embedded("e", vectors, VECTORS, SIZE)


async def ask(service: Long, path: str, body: dict[str, Any]) -> Any:
    async with serving(service) as served, served.http() as http:
        return await http.post(path, json={"model": "smol", **body})


@pytest.fixture
def between_turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes made between two turns of the event loop, as replies are made."""
    made: list[int] = [0]
    real = trio.lowlevel.checkpoint

    async def checkpoint() -> None:
        made.append(0)
        await real()

    async def watched(parts: Iterator[bytes]) -> Any:
        def counted() -> Iterator[bytes]:
            for part in parts:
                made[-1] += len(part)
                yield part

        with monkeypatch.context() as patch:
            patch.setattr(trio.lowlevel, "checkpoint", checkpoint)
            return await json_in_pieces(counted())

    for module in ("embeddings", "llama_server"):
        monkeypatch.setattr(f"saiserve.api.{module}.json_in_pieces", watched)
    return made


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "x", "pooling": "none"}),
        ("/v1/embeddings", {"input": "x"}),
        ("/embedding", {"content": "x", "pooling": "none"}),
        ("/embedding", {"content": "x"}),
        ("/tokenize", {"content": "x", "with_pieces": True}),
        ("/tokenize", {"content": "x"}),
    ],
)
async def test_a_long_reply_leaves_others_their_turn(path: str, body: dict[str, Any], between_turns: list[int]) -> None:
    reply = await ask(Long(), path, body)
    assert reply.status_code == 200
    assert int(reply.headers["content-length"]) == len(reply.content) == sum(between_turns)
    assert len(between_turns) > 3, "it is long"
    assert max(between_turns) < 2 * SLICE_BYTES
    assert reply.json()


async def test_every_token_and_piece_is_there() -> None:
    told = (await ask(Long(), "/tokenize", {"content": "x", "with_pieces": True})).json()["tokens"]
    assert [one["id"] for one in told] == list(range(TOKENS))
    assert told[7]["piece"] == [255]
    assert (told[8]["piece"], told[-1]["piece"]) == ("p8", f"p{TOKENS - 1}")
    assert (await ask(Long(), "/tokenize", {"content": "x"})).json() == {"tokens": list(range(TOKENS))}
    text = (await ask(Long(), "/detokenize", {"tokens": [1]})).json()["content"]
    assert text == "".join("�" if one == 7 else f"p{one}" for one in range(TOKENS))


async def test_every_vector_is_there() -> None:
    many, one = (await ask(Long(), "/v1/embeddings", {"input": "x", "pooling": "none"})).json()["data"]
    assert many == {"object": "embedding", "index": 0, "embedding": [[0.5] * SIZE] * VECTORS}
    assert one == {"object": "embedding", "index": 1, "embedding": [[0.5] * SIZE]}
    reply = (await ask(Long(), "/v1/embeddings", {"input": "x"})).json()
    assert (len(reply["data"]), reply["usage"]["prompt_tokens"], reply["object"]) == (VECTORS, VECTORS, "list")
    assert math.isclose(sum(number**2 for number in reply["data"][-1]["embedding"]), 1, rel_tol=1e-5)


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("pooling", ["none", "mean"])
async def test_what_is_no_number_is_a_fault_before_the_first_byte(number: float, pooling: str) -> None:
    reply = await ask(Long(number=number), "/v1/embeddings", {"input": "x", "pooling": pooling})
    assert reply.status_code == 500
    assert "not finite" in reply.json()["error"]["message"]


async def test_parts_make_the_json_that_their_values_are() -> None:
    async def made(parts: Iterator[bytes]) -> Any:
        reply = await json_in_pieces(parts)
        return msgspec.json.decode(b"".join(reply.pieces) if isinstance(reply, LongReply) else reply.body)

    assert await made(object_parts(first={"a": 1}, name="b", value=[b"[]"], rest={"c": 2})) == {"a": 1, "b": [], "c": 2}
    assert await made(object_parts(first={"a": 1}, name="b", value=[b"2"])) == {"a": 1, "b": 2}
    assert await made(list_parts([])) == []
    assert await made(list_parts([[b"1"], [b"[", b"2]"]])) == [1, [2]]
    assert await made(array_parts([])) == []
    assert await made(array_parts([[1, 2], ["x"]])) == [1, 2, "x"]
    numbers = list(range(3 * SLICE_BYTES))
    runs = (numbers[at : at + 100] for at in range(0, len(numbers), 100))
    assert await made(array_parts(runs)) == numbers
