"""Embeddings: texts or tokens in, unit vectors out, as floats or as base64 (what the official client asks for)."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from saiserve.api.body import decode, invalid
from saiserve.api.context import Api, Origin, decoded
from saiserve.api.embedding_inputs import Given, as_engine_takes, inputs_of
from saiserve.api.http import Call, Reply
from saiserve.api.long_reply import LongReply, json_in_pieces, list_parts, object_parts
from saiserve.api.prompts import Row
from saiserve.engines.messages import Embedded
from saiserve.errors import ApiError, ErrorKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REFUSED_INPUT = "input "
"""First word of an engine's refusal of one of the inputs."""


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


async def create_embeddings(api: Api, call: Call) -> Reply | LongReply:
    """`POST /v1/embeddings`."""
    body = await decoded(call, decode, EmbeddingsBody)
    origin = api.origin(call)
    model = origin.model(body.model)
    inputs = inputs_of(body.input if body.input is not None else body.content)
    if body.pooling == "none" and (body.encoding_format != "float" or body.dimensions is not None):
        raise invalid("pooling: none gives lists of whole vectors, without encoding_format and dimensions.", "pooling")
    embedded = await _embedded(api, model, inputs, origin, body)
    items = (
        object_parts(first={"object": "embedding", "index": index}, name="embedding", value=vectors)
        for index, vectors in enumerate(_shown(embedded, body))
    )
    usage = {"prompt_tokens": embedded.prompt_tokens, "total_tokens": embedded.prompt_tokens}
    rest = {"model": model, "usage": usage}
    return await json_in_pieces(object_parts(first={"object": "list"}, name="data", value=list_parts(items), rest=rest))


async def create_native_embeddings(api: Api, call: Call) -> Reply | LongReply:
    """`POST /embedding`: a list, each item with its vectors in a list of their own, as llama-server answers there."""
    body = await decoded(call, decode, EmbeddingsBody)
    origin = api.origin(call)
    model = origin.model(body.model)
    inputs = inputs_of(body.content if body.content is not None else body.input)
    embedded = await _embedded(api, model, inputs, origin, body)
    items = (
        object_parts(
            first={"index": index}, name="embedding", value=vectors if body.pooling == "none" else list_parts([vectors])
        )
        for index, vectors in enumerate(_shown(embedded, body))
    )
    return await json_in_pieces(list_parts(items))


async def _embedded(
    api: Api, model: str, inputs: tuple[str | Row, ...], origin: Origin, body: EmbeddingsBody
) -> Embedded:
    given = await as_engine_takes(api, model, inputs, origin)
    try:
        return await api.service.embed(
            model, given, request_id=origin.request_id, key_name=origin.key_name, pooling=body.pooling or ""
        )
    except ApiError as error:
        if error.kind is ErrorKind.INVALID_REQUEST and error.message.startswith(REFUSED_INPUT):
            error.param = "input"
        raise


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
        raise _not_finite()
    return (vector / length if length else vector).astype("<f4")


def _not_finite() -> ApiError:
    return ApiError(ErrorKind.ENGINE_FAILED, "The engine made a vector that is not finite.")


def _shown(embedded: Embedded, body: EmbeddingsBody) -> Iterator[Iterable[bytes]]:
    """Yield the JSON of each input's vector, or vectors, in parts."""
    for raw in embedded.vectors:
        if body.pooling == "none":
            yield list_parts(_rows(raw, embedded.size or len(raw) // 4))
        else:
            yield [_encoded(unit_vector(raw, body.dimensions), body.encoding_format)]


def _rows(raw: bytes, size: int) -> Iterator[Iterable[bytes]]:
    """Yield the JSON of every token's vector of `size` numbers."""
    import numpy as np

    for row in np.frombuffer(raw, dtype="<f4").reshape(-1, size):
        if not np.isfinite(row).all():
            raise _not_finite()
        yield [msgspec.json.encode(row.tolist())]


def _encoded(vector: NDArray[np.float32], encoding: str) -> bytes:
    return msgspec.json.encode(base64.b64encode(vector.tobytes()).decode() if encoding == "base64" else vector.tolist())
