"""`GET /openapi.json`: what is served, with request bodies from the very structs that validate them."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Any

import msgspec

from saiserve.api.admin import LOAD, LoadBody, UnloadBody
from saiserve.api.chat_schema import ChatBody
from saiserve.api.completions import CompletionBody
from saiserve.api.context import Api
from saiserve.api.embeddings import EmbeddingsBody
from saiserve.api.errors import ErrorStyle, error_style
from saiserve.api.http import Call, Reply, json_reply
from saiserve.api.llama_server import DetokenizeBody, TokenizeBody
from saiserve.api.messages_schema import CountBody, MessagesBody
from saiserve.api.native import InfillBody, NativeBody
from saiserve.api.openapi_replies import DELETED, EVENT, REPLIES, RESPONSE, Schema
from saiserve.api.rerank import RerankBody
from saiserve.api.responses_schema import ResponsesBody
from saiserve.auth import OPERATOR_PREFIXES
from saiserve.errors import ERRORS

BODIES: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/chat/completions/input_tokens": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/embeddings": EmbeddingsBody,
    "/v1/responses": ResponsesBody,
    "/v1/responses/input_tokens": ResponsesBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": CountBody,
    "/v1/rerank": RerankBody,
    "/completion": NativeBody,
    "/infill": InfillBody,
    "/embedding": EmbeddingsBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/apply-template": ChatBody,
}
"""POST routes and their bodies."""
ADMIN_BODIES: dict[str, type[msgspec.Struct]] = {
    "/admin/models/load": LoadBody,
    "/admin/models/unload": UnloadBody,
}
"""The operators' POST routes and their bodies."""
READS: dict[str, str] = {
    "/health": "Whether the process answers",
    "/ready": "Whether this node takes requests",
    "/v1/models": "All models",
    "/v1/models/{id}": "One model",
    "/v1/responses/{id}": "A kept response",
    "/v1/responses/{id}/input_items": "The input of a kept response",
    "/props": "Properties, in llama-server's shape",
    "/slots": "Lanes, in llama-server's shape",
    "/cluster/state": "This node's view of the cluster",
    "/admin/models": "Models of this node and the memory they share",
    "/admin/models/{id}": "One model of this node",
    "/metrics": "Metrics of this node in the Prometheus text format",
    "/openapi.json": "This document",
}
"""GET routes and what they are for."""
STREAMING = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/completion", "/infill"}
)
CANCEL = "/v1/responses/{id}/cancel"
TEXT_REPLIES = {"/metrics": "text/plain"}
"""Routes whose reply is not JSON."""
GET_STATUSES = ("400", "401", "404", "405", "500", "503")
POST_STATUSES = tuple(sorted({str(row.status) for row in ERRORS.values()} - {"426"}))

_ERROR = {
    "OpenAIError": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    },
    "LlamaError": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "code": {"type": "integer"},
                    "param": {"type": "string"},
                },
            }
        },
    },
    "AnthropicError": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "request_id": {"type": "string"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}
_ERROR_NAMES = {
    ErrorStyle.OPENAI: "OpenAIError",
    ErrorStyle.LLAMA: "LlamaError",
    ErrorStyle.ANTHROPIC: "AnthropicError",
}


async def describe(api: Api, call: Call) -> Reply:
    """Answer with the document."""
    return json_reply(document())


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    bodies = {**BODIES, **ADMIN_BODIES}
    types = list(dict.fromkeys(bodies.values()))
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, Any] = {path: {"post": _post(path, by_type[body])} for path, body in bodies.items()}
    for path, summary in READS.items():
        paths.setdefault(path, {})["get"] = _get(path, summary, REPLIES[path])
    paths["/v1/responses/{id}"]["delete"] = _get("/v1/responses/{id}", "Forget a kept response", DELETED)
    paths[CANCEL] = {"post": _get(CANCEL, "Refused: nothing runs in the background", RESPONSE, POST_STATUSES)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "saiserve", "version": _version()},
        "paths": paths,
        "components": {
            "schemas": {**components, **_ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "cluster": {"type": "apiKey", "in": "header", "name": "X-SAI-Cluster"},
            },
        },
    }


def _version() -> str:
    try:
        return metadata.version("swimcluster")
    except metadata.PackageNotFoundError:
        return "0"


def _post(path: str, body: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": REPLIES[path]}}
    if path in STREAMING:
        content["text/event-stream"] = {"schema": EVENT}
    replies = {"200": {"description": "The answer", "content": content}}
    if path == LOAD:
        replies["202"] = {"description": "It is being loaded", "content": content}
    return {
        "security": _security(path),
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {**replies, **_errors(path, POST_STATUSES)},
    }


def _get(path: str, summary: str, reply: Schema, statuses: tuple[str, ...] = GET_STATUSES) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": summary,
        "security": _security(path),
        "responses": {
            "200": {
                "description": summary,
                "content": {TEXT_REPLIES.get(path, "application/json"): {"schema": reply}},
            },
            **_errors(path, statuses),
        },
    }
    if "{id}" in path:
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation


def _security(path: str) -> list[dict[str, list[str]]]:
    if path in {"/health", "/ready"}:
        return []
    return [{"cluster": []}] if path.startswith(OPERATOR_PREFIXES) else [{"bearer": []}, {"apiKey": []}]


def _errors(path: str, statuses: tuple[str, ...]) -> dict[str, Any]:
    name = _ERROR_NAMES[error_style(path)]
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    return {status: {"description": "The request was refused or failed", "content": content} for status in statuses}
