"""Documents ranked for a query: llama-server's route, in Jina's and Cohere's shape or in text-embeddings-inference's."""

from __future__ import annotations

import struct
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from saiserve import limits
from saiserve.api.body import decode, invalid
from saiserve.api.context import Api, decoded
from saiserve.api.http import Call, Reply, json_reply
from saiserve.engines.messages import Embedded
from saiserve.errors import ApiError, ErrorKind


class RerankDocument(msgspec.Struct):
    """A document as Jina and Cohere also take it."""

    text: str


class RerankBody(msgspec.Struct):
    """The body of `POST /v1/rerank`; fields not listed are ignored.

    `documents` with `return_documents` is the form of Jina and Cohere, `texts` with `return_text` that of
    text-embeddings-inference. `top_k` is another name for `top_n`.
    """

    query: str
    documents: list[str | RerankDocument] | None = None
    texts: list[str] | None = None
    top_n: Annotated[int, Meta(ge=0)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    model: str | None = None
    return_documents: bool = False
    return_text: bool = False


async def rerank(api: Api, call: Call) -> Reply:
    """`POST /v1/rerank`: documents by the score that a ranking model gives each with the query."""
    body = await decoded(call, decode, RerankBody)
    documents = _documents(body)
    origin = api.origin(call)
    model = origin.model(body.model)
    try:
        embedded = await api.service.embed(
            model, (body.query, *documents), request_id=origin.request_id, key_name=call.key_name, pooling="rank"
        )
    except ApiError as error:
        if error.index is not None:
            error.param = f"{_field(body)}[{error.index}]"
        raise
    scores = _scores(embedded, len(documents))
    most = body.top_n if body.top_n is not None else body.top_k
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[:most]
    if body.documents is None:
        return json_reply(
            [
                {"index": index, "score": scores[index]} | ({"text": documents[index]} if body.return_text else {})
                for index in order
            ]
        )
    return json_reply(
        {
            "model": model,
            "object": "list",
            "usage": {"prompt_tokens": embedded.prompt_tokens, "total_tokens": embedded.prompt_tokens},
            "results": [_result(body, documents[index], index, scores[index]) for index in order],
        }
    )


def _field(body: RerankBody) -> str:
    return "documents" if body.documents is not None or body.texts is None else "texts"


def _documents(body: RerankBody) -> list[str]:
    given, field = body.documents if body.documents is not None else body.texts, _field(body)
    if not given or len(given) > limits.EMBEDDING_INPUTS_MAX:
        raise invalid(f"{field}: 1 to {limits.EMBEDDING_INPUTS_MAX} documents are taken.", field)
    documents = [one if isinstance(one, str) else one.text for one in given]
    if not body.query:
        raise invalid("query: must not be empty.", "query")
    if not all(documents):
        raise invalid(f"{field}[{documents.index('')}]: must not be empty.", field)
    return documents


def _scores(embedded: Embedded, count: int) -> list[float]:
    """The first score of each document: of one class the only one, of several the one for relevance."""
    if len(embedded.vectors) != count:
        raise ApiError(ErrorKind.ENGINE_FAILED, "The engine ranked another number of documents than it was given.")
    scores = [struct.unpack_from("<f", raw)[0] for raw in embedded.vectors]
    if not all(abs(score) < float("inf") for score in scores):
        raise ApiError(ErrorKind.ENGINE_FAILED, "The engine made a score that is not finite.")
    return scores


def _result(body: RerankBody, document: str, index: int, score: float) -> dict[str, Any]:
    shown = {"document": {"text": document}} if body.return_documents else {}
    return {"index": index, "relevance_score": score, **shown}
