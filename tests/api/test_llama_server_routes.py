"""Embeddings, llama-server's own routes, and the document that describes them all."""

from __future__ import annotations

import base64
import math
import struct
from typing import cast

import openai
import pytest
from starlette.routing import Route

from saiserve.api.admin import ModelAdmin, admin_routes
from saiserve.api.openapi import document
from saiserve.app import DELETE_ROUTES, GET_ROUTES, POST_ROUTES
from tests.api.serving import KEY, SECRET, served_elsewhere, serving
from tests.fakes.service import CARD, ScriptedService

HI = [{"role": "user", "content": "hi"}]


def test_the_official_client_gets_unit_vectors_in_order():
    with served_elsewhere() as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as ai:
        reply = ai.embeddings.create(model="smol", input=["a", "bbbb"])
        vectors = [item.embedding for item in reply.data]
        assert [item.index for item in reply.data] == [0, 1]
        assert all(math.isclose(math.hypot(*vector), 1, rel_tol=1e-6) for vector in vectors)
        assert vectors[0][0] < vectors[1][0]
        assert reply.usage.prompt_tokens == 5
        floats = ai.embeddings.create(model="smol", input="bbbb", encoding_format="float").data[0].embedding
        assert floats == pytest.approx(vectors[1])
        cut = ai.embeddings.create(model="smol", input=[1, 2, 3], dimensions=2).data[0].embedding
        assert len(cut) == 2
        assert math.isclose(math.hypot(*cut), 1, rel_tol=1e-6)


async def test_base64_is_little_endian_floats():
    async with serving() as served, served.http() as http:
        body = {"model": "smol", "input": "abc", "encoding_format": "base64"}
        data = (await http.post("/v1/embeddings", json=body)).json()["data"][0]["embedding"]
    # The service's vector of a text of three characters is (3, 1, 2).
    assert struct.unpack("<3f", base64.b64decode(data)) == pytest.approx([n / math.sqrt(14) for n in (3, 1, 2)])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": []},
        {"input": ""},
        {"input": ["a", ""]},
        {"input": [1, ""]},
        {"input": [1, [2]]},
        {"input": [1, {"prompt_string": "a"}]},
        {"input": [[1, "a"] * 65]},
        {"input": {}},
        {"input": {"prompt_string": ""}},
        {"input": {"prompt_string": "a", "multimodal_data": ["iVBO"]}},
        {"input": {"content": "a"}},
        {"input": {"content": []}},
        {"input": {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}},
        {"input": ["a"] * 2049},
        {"input": [-1]},
        {"input": "a", "dimensions": 9},
        {"input": "a", "dimensions": 0},
        {"input": "a", "encoding_format": "hex"},
        {"input": "a", "pooling": "median"},
        {"input": "a", "pooling": "none", "encoding_format": "base64"},
    ],
)
async def test_wrong_embedding_bodies_are_400(body):
    async with serving() as served, served.http() as http:
        assert (await http.post("/v1/embeddings", json={"model": "smol", **body})).status_code == 400


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ([1, "ab", 2], ((1, 97, 98, 2),)),
        (["ab", 1], ((97, 98, 1),)),
        ([[1, "a"], "b", [3]], ((1, 97), "b", (3,))),
        ({"prompt_string": "ab"}, ("ab",)),
        ({"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}, ("a b",)),
        (["a", {"prompt_string": "b"}, {"content": [{"type": "text", "text": "c"}]}], ("a", "b", "c")),
    ],
)
@pytest.mark.parametrize("route", ["/v1/embeddings", "/embedding"])
async def test_texts_tokens_and_objects_become_vectors_in_any_mixture(route, given, taken):
    service = ScriptedService()
    async with serving(service) as served, served.http() as http:
        reply = await http.post(route, json={"model": "smol", "input": given})
        assert reply.status_code == 200, reply.text
    assert service.embedded == [taken]


async def test_without_pooling_every_token_s_vector_is_shown_as_it_is():
    async with serving() as served, served.http() as http:
        body = {"model": "smol", "input": ["ab", "c"], "pooling": "none"}
        data = (await http.post("/v1/embeddings", json=body)).json()["data"]
        assert [item["embedding"] for item in data] == [[[1.0, 2.0, 2.0]] * 2, [[1.0, 2.0, 2.0]]]


async def test_tokens_go_out_and_come_back():
    async with serving() as served, served.http() as http:
        body = {"model": "smol", "content": "hé"}
        tokens = (await http.post("/tokenize", json=body)).json()["tokens"]
        assert tokens == [104, 233]
        pieces = (await http.post("/tokenize", json={**body, "with_pieces": True})).json()["tokens"]
        assert pieces == [{"id": 104, "piece": "h"}, {"id": 233, "piece": "é"}]
        back = await http.post("/detokenize", json={"model": "smol", "tokens": tokens})
        assert back.json() == {"content": "hé"}
        assert served.service.requests[0].template_options == {"add_special": False, "parse_special": True}


async def test_tokens_that_do_not_exist_are_400():
    async with serving() as served, served.http() as http:
        for tokens in ([0x110000], [-1], ["a"], [2**31]):
            assert (await http.post("/detokenize", json={"model": "smol", "tokens": tokens})).status_code == 400


async def test_a_template_is_applied_and_counted_without_generating():
    async with serving() as served, served.http() as http:
        applied = (await http.post("/apply-template", json={"model": "smol", "messages": HI})).json()
        assert applied == {"prompt": "<user>hi"}
        counted = (await http.post("/v1/chat/completions/input_tokens", json={"model": "smol", "messages": HI})).json()
        assert counted["input_tokens"] == len("<user>hi")
        assert served.service.ended == []


async def test_documents_are_ranked_in_both_shapes():
    async with serving() as served, served.http() as http:
        body = {"model": "smol", "query": "aaaa", "documents": ["a", "aaaa", "aa"], "top_n": 2}
        results = (await http.post("/v1/rerank", json=body)).json()["results"]
        assert [result["index"] for result in results] == [1, 2]
        bare = (await http.post("/rerank", json={"model": "smol", "query": "aaaa", "texts": ["a", "aaaa"]})).json()
        assert [result["index"] for result in bare] == [1, 0]
        assert {"index", "score"} == set(bare[0])
        shown = {**body, "documents": ["a", {"text": "aaaa"}], "return_documents": True, "top_n": None, "top_k": 1}
        (best,) = (await http.post("/v1/rerank", json=shown)).json()["results"]
        assert best == {"index": 1, "relevance_score": 0.0, "document": {"text": "aaaa"}}
        texts = {"model": "smol", "query": "a", "texts": ["b"], "return_text": True}
        assert (await http.post("/rerank", json=texts)).json() == [{"index": 0, "score": 0.0, "text": "b"}]


@pytest.mark.parametrize(
    "body",
    [
        {"query": "a", "documents": []},
        {"query": "a"},
        {"query": "", "documents": ["a"]},
        {"query": "a", "documents": ["a", ""]},
        {"query": "a", "documents": ["a"] * 2049},
        {"query": "a", "documents": ["a"], "top_n": -1},
        {"query": ["a"], "documents": ["a"]},
    ],
)
async def test_wrong_rerank_bodies_are_400(body):
    async with serving() as served, served.http() as http:
        assert (await http.post("/rerank", json={"model": "smol", **body})).status_code == 400


async def test_properties_and_slots_have_llama_servers_shape():
    card = CARD.__class__(id="smol", lanes=3, context_tokens=512, chat_template="T")
    async with serving(ScriptedService(cards=(card,))) as served, served.http() as http:
        props = (await http.get("/props")).json()
        assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (3, 512)
        assert [slot["id"] for slot in (await http.get("/slots")).json()] == [0, 1, 2]


async def test_without_a_model_name_the_only_ready_model_is_meant():
    async with serving(ScriptedService(cards=(CARD,))) as served, served.http() as http:
        assert (await http.post("/v1/chat/completions", json={"messages": HI})).status_code == 200
        assert served.service.requests[0].model == "smol"
    async with serving() as served, served.http() as http:
        reply = await http.post("/v1/chat/completions", json={"messages": HI})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")


NODE_ROUTES = {("get", "/metrics")} | {
    (method.lower(), route.path.replace("{id:path}", "{id}"))
    for route in admin_routes(cast("ModelAdmin", None))
    if isinstance(route, Route)
    for method in (route.methods or set()) - {"HEAD"}
}
"""What a node adds to the routes of its API."""


async def test_every_documented_route_exists_and_every_route_is_described():
    described = document()
    documented = {(method, path) for path, methods in described["paths"].items() for method in methods}
    tables = {"get": GET_ROUTES, "post": POST_ROUTES, "delete": DELETE_ROUTES}
    routed = {
        (method, path.replace("{id:path}", "{id}")): handler
        for method, table in tables.items()
        for path, handler in table.items()
    }
    assert documented <= set(routed) | NODE_ROUTES
    assert documented >= NODE_ROUTES
    others = {handler for route, handler in routed.items() if route in documented}
    undescribed = {route for route, handler in routed.items() if route not in documented and handler not in others}
    assert not undescribed, "neither described nor another name of a route that is"
    operators = {
        path
        for path, methods in described["paths"].items()
        for m in methods.values()
        if "cluster" in str(m["security"])
    }
    assert operators == {path for _, path in documented if path.startswith(("/admin", "/cluster", "/metrics"))}
    async with serving() as served, served.http(**{"x-sai-cluster": SECRET.decode()}) as http:
        assert (await http.get("/openapi.json")).json() == described
