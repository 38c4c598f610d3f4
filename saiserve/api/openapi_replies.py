"""The schemas of successful replies, by path: what each public API requires of them, and no less.

Extra keys are allowed everywhere, as the public APIs allow them.
"""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
FLAG: Final[Schema] = {"type": "boolean"}
NUMBER: Final[Schema] = {"type": "number"}
OBJECT: Final[Schema] = {"type": "object"}
ANY: Final[Schema] = {}


def const(value: str) -> Schema:
    """One fixed string."""
    return {"const": value}


def one_of(*values: str | None) -> Schema:
    """Some fixed strings, or null."""
    return {"enum": list(values)}


def many(items: Schema, at_least: int = 0) -> Schema:
    """An array."""
    return {"type": "array", "items": items, "minItems": at_least}


def maybe(schema: Schema) -> Schema:
    """The same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def record(**fields: Schema) -> Schema:
    """An object whose keys all have to be there, except those written with a trailing underscore."""
    required = [name for name in fields if not name.endswith("_")]
    properties = {name.rstrip("_"): schema for name, schema in fields.items()}
    return {"type": "object", "required": required, "properties": properties}


def listing(item: Schema) -> Schema:
    """A page of OpenAI's list."""
    return record(object=const("list"), data=many(item))


USAGE: Final = record(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=record(cached_tokens=COUNT),
    completion_tokens_details=record(reasoning_tokens=COUNT),
)
CALL: Final = record(id=TEXT, type=one_of("function", "custom"))
CHAT: Final = record(
    id=TEXT,
    object=const("chat.completion"),
    created=COUNT,
    model=TEXT,
    choices=many(
        record(
            index=COUNT,
            finish_reason=one_of("stop", "length", "tool_calls", "content_filter", "function_call"),
            logprobs=maybe(record(content=many(record(token=TEXT, logprob=NUMBER, bytes=many(COUNT))))),
            message=record(
                role=const("assistant"), content=maybe(TEXT), refusal=maybe(TEXT), tool_calls_=many(CALL, at_least=1)
            ),
        ),
        at_least=1,
    ),
    usage=USAGE,
)
COMPLETION: Final = record(
    id=TEXT,
    object=const("text_completion"),
    created=COUNT,
    model=TEXT,
    choices=many(
        record(
            index=COUNT, text=TEXT, logprobs=maybe(OBJECT), finish_reason=one_of("stop", "length", "content_filter")
        ),
        at_least=1,
    ),
    usage=USAGE,
)
VECTOR: Final[Schema] = {"anyOf": [many(NUMBER), TEXT, many(many(NUMBER)), many(TEXT)]}
"""Floats or base64, of the text or, where nothing is pooled, of each token."""
EVENT: Final = {"type": "object", "properties": {"event": TEXT, "data": TEXT}, "required": ["data"]}
"""One server-sent event: what the schema of a stream is held against."""
EMBEDDINGS: Final = {
    **listing(record(object=const("embedding"), index=COUNT, embedding=VECTOR)),
    "required": ["object", "data", "model", "usage"],
}
RESPONSE: Final = record(
    id=TEXT,
    object=const("response"),
    created_at=NUMBER,
    status=one_of("completed", "failed", "incomplete"),
    model=TEXT,
    output=many(record(type=TEXT, id=TEXT, status=TEXT)),
    parallel_tool_calls=FLAG,
    tool_choice=ANY,
    tools=many(OBJECT),
    error=maybe(record(code=TEXT, message=TEXT)),
    incomplete_details=maybe(record(reason=TEXT)),
    instructions=ANY,
    metadata=maybe(OBJECT),
    temperature=maybe(NUMBER),
    top_p=maybe(NUMBER),
    usage=maybe(
        record(
            input_tokens=COUNT,
            input_tokens_details=record(cached_tokens=COUNT, cache_write_tokens=COUNT),
            output_tokens=COUNT,
            output_tokens_details=record(reasoning_tokens=COUNT),
            total_tokens=COUNT,
        )
    ),
)
MESSAGE: Final = record(
    id=TEXT,
    type=const("message"),
    role=const("assistant"),
    model=TEXT,
    content=many(record(type=one_of("text", "thinking", "tool_use"))),
    stop_reason=one_of("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"),
    stop_sequence=maybe(TEXT),
    usage=record(
        input_tokens=COUNT,
        output_tokens=COUNT,
        cache_read_input_tokens=COUNT,
        cache_creation_input_tokens=COUNT,
    ),
)
MODEL: Final = record(
    id=TEXT,
    object=const("model"),
    created=COUNT,
    owned_by=TEXT,
    type=const("model"),
    display_name=TEXT,
    created_at={"type": "string", "format": "date-time"},
    lifecycle=TEXT,
)
MODELS: Final = {
    "anyOf": [{**listing(MODEL), "required": ["object", "data", "has_more", "models"]}, record(models=many(OBJECT))]
}
"""The page for everybody, or the catalogue Codex asks for with `client_version`."""
TOKENS: Final = record(tokens=many({"anyOf": [COUNT, record(id=COUNT, piece={"anyOf": [TEXT, many(COUNT)]})]}))
RANKED: Final[Schema] = {
    "anyOf": [
        record(object=const("list"), model=TEXT, results=many(record(index=COUNT, relevance_score=NUMBER))),
        many(record(index=COUNT, score=NUMBER)),
    ]
}

HOLDINGS: Final = record(prefixes=COUNT, tokens=COUNT, size_bytes=COUNT)
LONG_PREFIX: Final = record(tokens=COUNT, where=TEXT, age_s=NUMBER)
RESIDENT: Final = record(
    id=TEXT,
    state=TEXT,
    on_demand=FLAG,
    pinned=FLAG,
    memory_bytes=maybe(COUNT),
    held_bytes=COUNT,
    uses=COUNT,
    idle_s=maybe(NUMBER),
    loads=COUNT,
    load_s=maybe(NUMBER),
    error=maybe(TEXT),
    memory_=record(weights=COUNT, kv=COUNT, compute=COUNT, cache=COUNT),
    reencoding_=TEXT,
    progress_=record(stage=TEXT, fraction=NUMBER),
    prefixes_=record(running=HOLDINGS, idle=HOLDINGS, host=HOLDINGS, longest=many(LONG_PREFIX)),
)
"""One model of a node, as operators are shown it."""

REPLIES: Final[dict[str, Schema]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/embeddings": EMBEDDINGS,
    "/v1/responses": RESPONSE,
    "/v1/responses/input_tokens": record(object=const("response.input_tokens"), input_tokens=COUNT),
    "/v1/chat/completions/input_tokens": record(object=const("response.input_tokens"), input_tokens=COUNT),
    "/v1/messages": MESSAGE,
    "/v1/messages/count_tokens": record(input_tokens=COUNT),
    "/v1/rerank": RANKED,
    "/completion": {"type": ["object", "array"]},
    "/infill": {"type": ["object", "array"]},
    "/tokenize": TOKENS,
    "/detokenize": record(content=TEXT),
    "/apply-template": record(prompt=TEXT),
    "/health": record(status=const("ok")),
    "/ready": record(status=const("ready")),
    "/v1/models": MODELS,
    "/v1/models/{id}": MODEL,
    "/v1/responses/{id}": RESPONSE,
    "/v1/responses/{id}/input_items": listing(record(id=TEXT)),
    "/props": record(total_slots=COUNT, model_alias=TEXT, chat_template=TEXT, modalities=OBJECT),
    "/slots": many(record(id=COUNT, n_ctx=COUNT, is_processing=FLAG)),
    "/embedding": many(record(index=COUNT, embedding=VECTOR)),
    "/admin/models": record(models=many(RESIDENT), memory=record(budget_bytes=COUNT, held_bytes=COUNT)),
    "/admin/models/{id}": RESIDENT,
    "/admin/models/load": RESIDENT,
    "/admin/models/unload": RESIDENT,
    "/metrics": TEXT,
    "/openapi.json": record(openapi=TEXT, info=OBJECT, paths=OBJECT),
    "/cluster/state": record(members=many(record(name=TEXT, state=TEXT))),
}
"""Replies to GET and POST, with status 200."""
DELETED: Final = record(id=TEXT, object=const("response"), deleted={"const": True})
"""The reply to DELETE of a kept response."""
