"""Embeddings: texts or tokens in, unit vectors out, as floats or as base64 (what the official client asks for)."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from saiserve.api.body import decode, invalid
from saiserve.api.context import Api, Origin, decoded
from saiserve.api.embedding_inputs import Given, as_engine_takes, inputs_of
from saiserve.api.http import Call, Reply, json_reply
from saiserve.api.prompts import Row
from saiserve.engines.messages import Embedded
from saiserve.errors import ApiError, ErrorKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class EmbeddingsBody(msgspec.Struct):
    """The body of `POST /v1/embeddings`; fields not listed are ignored. `content` is llama-server's name for `input`."""

    input: Given | None = None
    content: Given | None = None
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    pooling: Literal["mean", "cls", "last", "none"] | None = None
    """How token vectors become one; as the model was trained when absent. `none`: every token's, not scaled."""
    user: str = ""


async def create_embeddings(api: Api, call: Call) -> Reply:
    """`POST /v1/embeddings`."""
    body = await decoded(call, decode, EmbeddingsBody)
    origin = api.origin(call)
    model = origin.model(body.model)
    inputs = inputs_of(body.input if body.input is not None else body.content)
    if body.pooling == "none" and (body.encoding_format != "float" or body.dimensions is not None):
        raise invalid("pooling: none gives lists of whole vectors, without encoding_format and dimensions.", "pooling")
    embedded = await _embedded(api, model, inputs, origin, body)
    return json_reply(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": _shown(raw, body, embedded.size)}
                for index, raw in enumerate(embedded.vectors)
            ],
            "model": model,
            "usage": {"prompt_tokens": embedded.prompt_tokens, "total_tokens": embedded.prompt_tokens},
        }
    )


async def create_native_embeddings(api: Api, call: Call) -> Reply:
    """`POST /embedding`: a list, each item with its vectors in a list of their own, as llama-server answers there."""
    body = await decoded(call, decode, EmbeddingsBody)
    origin = api.origin(call)
    model = origin.model(body.model)
    inputs = inputs_of(body.content if body.content is not None else body.input)
    embedded = await _embedded(api, model, inputs, origin, body)
    shown = [_shown(raw, body, embedded.size) for raw in embedded.vectors]
    return json_reply(
        [
            {"index": index, "embedding": vectors if body.pooling == "none" else [vectors]}
            for index, vectors in enumerate(shown)
        ]
    )


async def _embedded(
    api: Api, model: str, inputs: tuple[str | Row, ...], origin: Origin, body: EmbeddingsBody
) -> Embedded:
    return await api.service.embed(
        model,
        await as_engine_takes(api, model, inputs, origin),
        request_id=origin.request_id,
        key_name=origin.key_name,
        pooling=body.pooling or "",
    )


def unit_vector(raw: bytes, dimensions: int | None = None) -> NDArray[np.float32]:
    """Return a vector of length one, cut to its first `dimensions` numbers before it is scaled.

    Raises:
        ApiError: 400 for more dimensions than the model has, 500 for a vector that has no direction.
    """
    import numpy as np  # a node that is asked for no vectors needs none

    vector = np.frombuffer(raw, dtype="<f4").astype(np.float64)
    if dimensions is not None:
        if dimensions > len(vector):
            raise invalid(f"dimensions: the model's vectors have {len(vector)}.", "dimensions")
        vector = vector[:dimensions]
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length):
        raise ApiError(ErrorKind.ENGINE_FAILED, "The engine made a vector that is not finite.")
    return (vector / length if length else vector).astype("<f4")


def _shown(raw: bytes, body: EmbeddingsBody, size: int) -> list[float] | list[list[float]] | str:
    if body.pooling != "none":
        return _encoded(unit_vector(raw, body.dimensions), body.encoding_format)
    row = struct.Struct(f"<{size or len(raw) // 4}f")
    return [list(numbers) for numbers in row.iter_unpack(raw)]


def _encoded(vector: NDArray[np.float32], encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.tobytes()).decode()
    return [float(number) for number in vector]
