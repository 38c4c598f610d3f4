"""A prompt that does not fit is told of the field that holds it, on every route: a client shortens what is named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from saiserve.api.errors import OVERFLOWING_FIELD, OVERFLOWING_FIELDS, ErrorStyle, error_style, overflowing_field
from saiserve.app import POST_ROUTES
from saiserve.chat.events import AnswerFailed, Started, TextDelta
from saiserve.chat.request import GenerationRequest
from saiserve.engines.messages import Counted, Embedded
from saiserve.errors import ApiError, ErrorKind
from tests.api.serving import serving
from tests.fakes.service import ScriptedService
from tests.property.api.events import server_sent

MESSAGES = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": MESSAGES,
    "/chat/completions": MESSAGES,
    "/v1/messages": MESSAGES,
    "/v1/completions": {"prompt": "x"},
    "/completion": {"prompt": "x"},
    "/completions": {"prompt": "x"},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/v1/responses": {"input": "x"},
    "/responses": {"input": "x"},
    "/v1/embeddings": {"input": "x"},
    "/embeddings": {"input": "x"},
    "/embedding": {"content": "x"},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/rerank": {"query": "x", "documents": ["y"]},
    "/v1/reranking": {"query": "x", "documents": ["y"]},
    "/reranking": {"query": "x", "documents": ["y"]},
}
"""A small body for each route that computes something."""
COMPUTE_NOTHING = ("/tokenize", "/detokenize", "/apply-template", "/input_tokens", "/count_tokens", "/cancel")


@dataclass
class Full(ScriptedService):
    """Nothing fits; what is counted is one token, as marks to fill in between are."""

    told: bool = True
    index: int | None = None

    async def count(self, request: GenerationRequest, **_options: Any) -> Counted:
        return Counted(request.id, 1, ids=(1,), pieces=(b"",))

    async def embed(self, *_given: Any, **_named: Any) -> Embedded:
        raise overflow(told=self.told, index=self.index)


def overflow(*, told: bool = True, index: int | None = None) -> ApiError:
    numbers = {"prompt_tokens": 900, "context_tokens": 256} if told else {}
    return ApiError(ErrorKind.CONTEXT_TOO_LONG, "much too much", **numbers, index=index)


def test_every_route_that_computes_is_asked_below() -> None:
    assert {path for path in POST_ROUTES if not path.endswith(COMPUTE_NOTHING)} == set(BODIES)
    assert set(OVERFLOWING_FIELDS) <= set(BODIES)


@pytest.mark.parametrize("path", [path for path in BODIES if error_style(path) is ErrorStyle.OPENAI])
async def test_an_overflow_names_the_routes_own_field(path: str) -> None:
    body = BODIES[path]
    async with serving(Full(script=lambda _: [overflow()])) as served, served.http() as http:
        reply = await http.post(path, json={"model": "smol", **body})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
    field = error["param"]
    assert field == overflowing_field(path)
    assert field in body, "a field of the body that was sent"
    assert error["message"] == (
        "This model's maximum context length is 256 tokens. "
        f"However, your {field} resulted in 900 tokens. Please reduce the length of the {field}."
    )


@pytest.mark.parametrize("path", [path for path in BODIES if path.endswith(("embeddings", "/rerank"))])
async def test_of_several_inputs_the_one_that_does_not_fit_is_named(path: str) -> None:
    async with serving(Full(index=3)) as served, served.http() as http:
        reply = await http.post(path, json={"model": "smol", **BODIES[path]})
    error = reply.json()["error"]
    assert error["param"] == f"{overflowing_field(path)}[3]"
    assert f"However, your {error['param']} resulted in 900 tokens." in error["message"]


@dataclass
class Choosy(ScriptedService):
    """Says no to one of the inputs."""

    async def embed(self, *_given: Any, **_named: Any) -> Embedded:
        raise ApiError(ErrorKind.INVALID_REQUEST, "input 1 is empty or has unknown tokens")


async def test_an_input_that_the_engine_refuses_is_named_too() -> None:
    async with serving(Choosy(script=lambda _: [])) as served, served.http() as http:
        reply = await http.post("/v1/embeddings", json={"model": "smol", "input": [[1], [999_999]]})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "input"), error


@pytest.mark.parametrize(("index", "named"), [(None, {}), (3, {"param": "content[3]"})])
async def test_llama_servers_error_stays_its_own_beside_the_name(index: int | None, named: dict[str, str]) -> None:
    async with serving(Full(index=index)) as served, served.http() as http:
        reply = await http.post("/embedding", json={"model": "smol", "content": "x"})
    assert reply.json()["error"] == {
        "code": 400,
        "message": "request (900 tokens) exceeds the available context size (256 tokens), try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 900,
        "n_ctx": 256,
        **named,
    }


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("path", [path for path in BODIES if error_style(path) is not ErrorStyle.OPENAI])
async def test_the_other_styles_name_no_field_of_another_route(path: str, told: bool) -> None:
    async with serving(Full(script=lambda _: [overflow(told=told)], told=told)) as served, served.http() as http:
        reply = await http.post(path, json={"model": "smol", **BODIES[path]})
    message = reply.json()["error"]["message"]
    assert reply.status_code == 400
    assert OVERFLOWING_FIELD not in message
    assert ("900" if told else "much too much") in message
    assert "(0 tokens)" not in message


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_so_does_one_in_the_middle_of_a_stream(path: str) -> None:
    script = [Started(7, 3), TextDelta(0, "one"), AnswerFailed(overflow())]
    async with serving(Full(script=lambda _: script)) as served, served.http() as http:
        reply = await http.post(path, json={"model": "smol", "stream": True, **BODIES[path]})
    last = json.loads(server_sent(reply.content)[-1][1])
    error = last["response"]["error"] if path == "/v1/responses" else last["error"]
    assert f"However, your {overflowing_field(path)} resulted in 900 tokens." in error["message"]


async def test_documents_sent_as_texts_are_told_of_as_texts() -> None:
    texts = {"model": "smol", "query": "x", "texts": ["y", "z"]}
    async with serving(Full(index=1)) as served, served.http() as http:
        error = (await http.post("/rerank", json=texts)).json()["error"]
        empty = (await http.post("/rerank", json={**texts, "texts": ["y", ""]})).json()["error"]
    assert error["param"] == "texts[1]"
    assert "texts[1]" in error["message"]
    assert empty["param"] == "texts"
