"""What the public routes say beside an answer's text: what is not found, what failed, ids, headers, lists and counts."""

from __future__ import annotations

import pytest

from saiserve.chat.events import AnswerFailed, Started
from saiserve.errors import ApiError, ErrorKind
from tests.api.serving import CHAT, HI, assert_refused, serving
from tests.fakes.service import ScriptedService


async def test_paths_and_methods_that_do_not_exist_are_json_errors():
    async with serving() as served, served.http() as http:
        await assert_refused(await http.get("/nowhere"), 404)
        wrong_method = await http.get(CHAT)
        await assert_refused(wrong_method, 405)
        assert "POST" in wrong_method.headers["allow"]
        twice = await assert_refused(await http.post("/v1/v1/chat/completions", json={}), 404)
        assert "base URL" in twice["message"]
        anthropic = (await http.post("/v1/v1/messages?beta=true", json={})).json()
        assert anthropic["error"]["type"] == "not_found_error"
        assert "base URL" in anthropic["error"]["message"]


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_a_path_beside_one_with_an_id_is_never_taken_for_the_id(method):
    async with serving() as served, served.http() as http:
        reply = await http.request(method, "/v1/responses/input_tokens")
        await assert_refused(reply, 405)
        assert reply.headers["allow"] == "POST"
        assert (await http.request("PATCH", "/v1/models")).headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "name",
    [
        "../../../../etc/passwd",
        "/etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "smol/../smol",
        "smol\0.gguf",
        "x" * 10_000,
        "",
    ],
)
async def test_a_model_name_is_only_ever_looked_up(name):
    async with serving() as served, served.http() as http:
        response = await http.post(CHAT, json={"model": name, "messages": HI})
        error = await assert_refused(response, 404, "model")
        assert error["code"] == "model_not_found"


async def test_a_fault_of_ours_is_a_500_that_says_nothing_of_the_inside(caplog):
    service = ScriptedService(lambda request: [ValueError("secret inside")])
    async with serving(service) as served, served.http() as http:
        error = await assert_refused(await http.post(CHAT, json={"model": "smol", "messages": HI}), 500)
        assert "secret" not in error["message"]
    caplog.clear()


async def test_a_busy_node_says_when_to_come_back():
    busy = ApiError(ErrorKind.BUSY, "all lanes are taken", retry_after_s=1.2)
    async with serving(ScriptedService(lambda request: [busy])) as served, served.http() as http:
        response = await http.post(CHAT, json={"model": "smol", "messages": HI})
        await assert_refused(response, 503)
        assert response.headers["retry-after"] == "2"


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses"])
async def test_a_fault_during_the_prompt_has_its_status_even_when_streaming(path):
    failed = AnswerFailed(ApiError(ErrorKind.ENGINE_FAILED, "two engines died"))
    body = {"model": "smol", "messages": HI, "input": "hi", "max_tokens": 5, "stream": True}
    async with serving(ScriptedService(lambda request: [Started(5, 0), failed])) as served, served.http() as http:
        response = await http.post(path, json=body)
        assert response.status_code == 500
        assert "two engines died" in response.json()["error"]["message"]


async def test_the_route_is_told_in_a_header():
    async with serving() as served, served.http() as http:
        for stream in (False, True):
            response = await http.post(CHAT, json={"model": "smol", "messages": HI, "stream": stream})
            assert response.headers["x-sai-route"] == "local smol: the only place"
        assert response.headers["content-type"] == "text/event-stream"
        assert "content-encoding" not in response.headers


async def test_request_ids_are_echoed_when_plain_and_replaced_when_not():
    async with serving() as served, served.http() as http:
        assert (await http.get("/health", headers={"x-request-id": "abc-1"})).headers["x-request-id"] == "abc-1"
        for odd in ("x" * 200, "a b", "é"):
            reply = await http.get("/health", headers={"x-request-id": odd.encode("latin-1")})
            assert reply.headers["x-request-id"].startswith("req_")


async def test_the_request_id_in_the_header_is_the_one_in_the_answer_and_the_log():
    async with serving() as served, served.http() as http:
        reply = await http.post(CHAT, json={"model": "smol", "messages": HI})
        unique = reply.headers["x-request-id"].removeprefix("req_")
        assert reply.json()["id"] == f"chatcmpl-{unique}"
        again = await http.post(CHAT, json={"model": "smol", "messages": HI}, headers={"x-request-id": "mine"})
        assert again.headers["x-request-id"] == "mine"
        assert again.json()["id"] not in ("chatcmpl-mine", f"chatcmpl-{unique}")


async def test_one_list_of_models_serves_every_reader():
    async with serving() as served, served.http() as http:
        body = (await http.get("/v1/models?limit=1")).json()
        assert body["object"] == "list"
        assert body["has_more"] is True
        assert body["first_id"] == body["last_id"] == "smol"
        first = body["data"][0]
        assert {
            "id",
            "object",
            "created",
            "owned_by",
            "meta",
            "aliases",
            "status",
            "type",
            "display_name",
            "created_at",
            "lifecycle",
        } <= set(first)
        rest = (await http.get("/v1/models?after_id=smol")).json()
        assert [model["id"] for model in rest["data"]] == ["org/name"]
        assert rest["has_more"] is False
        catalogue = (await http.get("/v1/models?client_version=0.171.0")).json()
        assert {"slug", "base_instructions", "truncation_policy", "shell_type"} <= set(catalogue["models"][0])
        await assert_refused(await http.get("/v1/models?limit=x"), 400, "limit")


@pytest.mark.parametrize(("echo", "shown"), [(True, ["ab", "ab", "c", "c"]), (False, [""] * 4)])
async def test_a_completion_of_no_tokens_counts_its_prompts_and_asks_no_engine(echo, shown):
    service = ScriptedService()
    async with serving(service) as served, served.http() as http:
        asked = {"model": "smol", "prompt": ["ab", "c"], "max_tokens": 0, "n": 2, "echo": echo}
        reply = (await http.post("/v1/completions", json=asked)).json()
        assert [choice["text"] for choice in reply["choices"]] == shown
        assert {choice["finish_reason"] for choice in reply["choices"]} == {"length"}
        assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (3, 0)
        streamed = await http.post("/v1/completions", json={**asked, "stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n")
    assert not service.ended
