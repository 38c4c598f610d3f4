"""What a broken or hostile request gets on the OpenAI-shaped routes: the right status, the right field, always JSON."""

from __future__ import annotations

import gzip
import json

import pytest

from saiserve import limits
from saiserve.chat.events import AnswerFailed, Started
from saiserve.errors import ApiError, ErrorKind
from tests.api.serving import KEY, SECRET, raw_exchange, serving
from tests.fakes.service import ScriptedService

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def refuse_nan(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def strict(content: bytes) -> dict:
    return json.loads(content.decode("utf-8", "strict"), parse_constant=refuse_nan)


async def assert_refused(response, status: int, param: str | None = None) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert response.headers["x-request-id"] == response.headers["request-id"]
    error = strict(response.content)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    if param is not None:
        assert (error["param"] or "").startswith(param), error
    return error


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

BAD_FIELDS = [
    ({}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
    ({"messages": HI, "temperature": 2.1}, "temperature"),
    ({"messages": HI, "temperature": "hot"}, "temperature"),
    ({"messages": HI, "top_p": -0.1}, "top_p"),
    ({"messages": HI, "n": 0}, "n"),
    ({"messages": HI, "n": limits.CHOICES_MAX + 1}, "n"),
    ({"messages": HI, "n": True}, "n"),
    ({"messages": HI, "max_tokens": 0}, "max_tokens"),
    ({"messages": HI, "max_tokens": "5"}, "max_tokens"),
    ({"messages": HI, "max_tokens": 10**30}, "max_tokens"),
    ({"messages": HI, "seed": 2**64}, "seed"),
    ({"messages": HI, "presence_penalty": 3}, "presence_penalty"),
    ({"messages": HI, "top_logprobs": 21}, "top_logprobs"),
    ({"messages": HI, "top_logprobs": 2}, "top_logprobs"),
    ({"messages": HI, "stop": ""}, "stop"),
    ({"messages": HI, "stop": ["a", ""]}, "stop"),
    ({"messages": HI, "stop": ["x"] * 17}, "stop"),
    ({"messages": HI, "stop": "x" * 10_000}, "stop"),
    ({"messages": HI, "stop": [5]}, "stop[0]"),
    ({"messages": HI, "logit_bias": {"AI": -100}}, "logit_bias"),
    ({"messages": HI, "logit_bias": {"-1": 5}}, "logit_bias"),
    ({"messages": HI, "logit_bias": {"99999999999": 5}}, "logit_bias"),
    ({"messages": HI, "logit_bias": {"5": "x"}}, "logit_bias"),
    ({"messages": HI, "logit_bias": {"5": 1e308}}, "logit_bias"),
    ({"messages": HI, "logit_bias": {"5": 101}}, "logit_bias"),
    ({"messages": HI, "response_format": {"type": "xml"}}, "response_format"),
    ({"messages": HI, "response_format": {"type": "json_schema"}}, "response_format"),
    ({"messages": HI, "response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
    ({"messages": HI, "tools": [{"type": "function"}]}, "tools[0].function"),
    ({"messages": HI, "tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"messages": HI, "tools": [{"type": "function", "function": {"name": "a"}}] * 2}, "tools[1]"),
    ({"messages": HI, "tool_choice": "required"}, "tool_choice"),
    ({"messages": HI, "tool_choice": "perhaps"}, "tool_choice"),
    ({"messages": HI, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"messages": HI, "continue_final_message": True}, "continue_final_message"),
    ({"messages": HI, "model": 5}, "model"),
    ({"messages": HI, "model": ["smol"]}, "model"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_field_is_400_and_named(stream):
    async with serving() as served, served.http() as http:
        for body, param in BAD_FIELDS:
            response = await http.post(CHAT, json={"model": "smol", "stream": stream} | body)
            error = await assert_refused(response, 400, param)
            assert error["type"] == "invalid_request_error"
        assert served.service.requests == []


GOOD_BODIES = [
    {"messages": [{"role": "user", "content": ""}]},
    {"messages": [{"role": "user", "content": []}]},
    {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "42", "tool_call_id": "c1"},
        ]
    },
    {"messages": HI, "tools": None, "tool_choice": None, "stop": None, "temperature": None, "response_format": None},
    {"messages": HI, "tools": []},
    {"messages": HI, "unknown_field": {"deep": [1, None]}, "safeguards": True},
    {"messages": [{"role": "developer", "content": "be brief"}, *HI]},
    {"messages": [*HI, *HI]},
    {"messages": [*HI, {"role": "assistant", "content": "The capital"}]},
    {"messages": HI, "max_tokens": -1, "seed": -1},
    {"messages": HI, "logit_bias": [[5, False], ["6", 1.5]]},
]


async def test_unusual_but_legal_bodies_are_answered():
    async with serving() as served, served.http() as http:
        for body in GOOD_BODIES:
            response = await http.post(CHAT, json={"model": "smol"} | body)
            assert response.status_code == 200, (body, response.text)


BAD_BYTES = [
    b"",
    b" ",
    b"{:",
    b'{"messages":[{"role":"user","content":"\xff"}]}',
    '{"messages":[{"role":"user","content":"中文"}]}'.encode("gbk"),
    b'{"messages":[{"role":"user","content":"\\ud800"}]}',
    b'{"model":"\\ud800","messages":[]}',
    b'{"stop":"\\udfff","messages":[]}',
    b'{"tools":[{"type":"function","function":{"name":"\\ud800"}}]}',
    b'\xef\xbb\xbf{"messages":[{"role":"user","content":"hi"}]}',
    b"[]",
    b"5",
    b"null",
    b'"text"',
    b'{"temperature":NaN}',
    b'{"temperature":1e999}',
    b'{"a":' * 70 + b"1" + b"}" * 70,
    b"[" * 200_000,
    '{"model":"smol"}'.encode("utf-16"),
]


async def test_bytes_that_are_no_json_object_are_400():
    async with serving() as served, served.http(**{"content-type": "application/json"}) as http:
        for body in BAD_BYTES:
            await assert_refused(await http.post(CHAT, content=body), 400)


async def test_nesting_is_bounded_even_where_nothing_reads_it():
    start = b'{"model":"smol","messages":[{"role":"user","content":"hi"}],"unread":'
    async with serving() as served, served.http(**{"content-type": "application/json"}) as http:
        fits = limits.JSON_DEPTH_MAX - 1
        assert (await http.post(CHAT, content=start + b"[" * fits + b"]" * fits + b"}")).status_code == 200
        for depth in (fits + 1, 5_000, 500_000):
            error = await assert_refused(await http.post(CHAT, content=start + b"[" * depth + b"]" * depth + b"}"), 400)
            assert "deeper" in error["message"]


async def test_the_last_of_duplicate_keys_wins():
    async with serving() as served, served.http(**{"content-type": "application/json"}) as http:
        body = b'{"model":"none","messages":[],"messages":[{"role":"user","content":"a","content":"b"}],"model":"smol"}'
        assert (await http.post(CHAT, content=body)).status_code == 200
        assert served.service.requests[0].messages[0].text == "b"


async def test_compressed_bodies_are_read_and_junk_is_refused():
    body = json.dumps({"model": "smol", "messages": HI}).encode()
    async with serving() as served, served.http(**{"content-type": "application/json"}) as http:
        gzipped = {"content-encoding": "gzip"}
        assert (await http.post(CHAT, content=gzip.compress(body), headers=gzipped)).status_code == 200
        await assert_refused(await http.post(CHAT, content=b"junk", headers=gzipped), 400)
        await assert_refused(await http.post(CHAT, content=gzip.compress(body)[:-9], headers=gzipped), 400)
        await assert_refused(await http.post(CHAT, content=body, headers={"content-encoding": "zstd"}), 415)


async def test_media_types_other_than_json_are_415():
    async with serving() as served, served.http() as http:
        for media_type in ("text/plain", "multipart/form-data; boundary=x", "image/png"):
            await assert_refused(await http.post(CHAT, content=b"{}", headers={"content-type": media_type}), 415)


async def test_a_body_beyond_the_limit_is_413_before_it_is_sent():
    async with serving() as served:
        head = (
            f"POST {CHAT} HTTP/1.1\nHost: x\nAuthorization: Bearer {KEY}\nContent-Type: application/json\n"
            f"Content-Length: {limits.BODY_BYTES_MAX + 1}\n"
        )
        status, headers, body = await raw_exchange(served, head, b"{")
        assert (status, headers["content-type"]) == (413, "application/json")
        assert strict(body)["error"]["code"] == "request_too_large"


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


async def test_probes_need_no_key_and_tell_loading_from_ready():
    service = ScriptedService(unready_reason="loading smol")
    async with serving(service) as served, served.http(authorization="") as http:
        assert (await http.get("/health")).json() == {"status": "ok"}
        await assert_refused(await http.get("/ready"), 503)
        service.unready_reason = ""
        assert (await http.get("/ready")).status_code == 200
        assert (await http.head("/")).status_code == 200
        assert (await http.head("/api/hello")).status_code == 200


async def test_operators_show_the_cluster_secret_and_clients_cannot():
    async with serving() as served, served.http() as http:
        response = await http.get("/cluster/state")
        await assert_refused(response, 401)
        assert "www-authenticate" in response.headers
        secret = {"x-sai-cluster": SECRET.decode()}
        assert (await http.get("/cluster/state", headers=secret)).json()["members"][0]["state"] == "alive"
        async with served.http(authorization="", **secret) as operator:
            await assert_refused(await operator.get("/v1/models"), 401)


def rejected_credentials() -> list[list[tuple[str, str]]]:
    return [
        [],
        [("authorization", f"Bearer {KEY[:-1]}")],
        [("authorization", f"Bearer {KEY}x")],
        [("authorization", f"Bearer {KEY.upper()}")],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", f"Basic {KEY}")],
        [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer wrong")],
        [("authorization", "Bearer k\xe9y")],
        [("x-api-key", "wrong")],
        [("x-api-key", "")],
    ]


VARIANTS = ["//v1/models", "/v1/models/", "/health/../v1/models", "/%761/models", "/v1/models", "/ready/", "/HEALTH"]


async def test_no_wrong_key_and_no_variant_of_a_path_gets_in():
    async with serving() as served:
        for place, credentials in enumerate(rejected_credentials()):
            for path in VARIANTS if place == 0 else ["/v1/models"]:
                for method in ("GET", "HEAD", "POST"):
                    lines = "".join(f"{name}: {value}\n" for name, value in credentials)
                    status, headers, _ = await raw_exchange(served, f"{method} {path} HTTP/1.1\nHost: x\n{lines}")
                    assert status == 401, (credentials, method, path)
                    assert "www-authenticate" in headers
        status, _, _ = await raw_exchange(served, f"GET /v1/models?api_key={KEY} HTTP/1.1\nHost: x\n")
        assert status == 401


async def test_variants_of_a_path_are_unknown_even_with_the_key():
    async with serving() as served:
        for path in ("//v1/models", "/v1/models/", "/health/../v1/models", "/ready/", "/HEALTH"):
            head = f"GET {path} HTTP/1.1\nHost: x\nAuthorization: Bearer {KEY}\n"
            status, _, body = await raw_exchange(served, head)
            assert status == 404, path
            assert strict(body)["error"]["type"] == "invalid_request_error"


async def test_every_way_to_show_the_right_key_works():
    async with serving() as served, served.http() as http:
        del http.headers["authorization"]
        for name, value in (
            ("authorization", f"bearer {KEY}"),
            ("x-api-key", KEY),
            ("authorization", f"BEARER  {KEY}"),
        ):
            assert (await http.get("/v1/models", headers={name: value})).status_code == 200
        await http.post(CHAT, json={"model": "smol", "messages": HI}, headers={"x-api-key": "another-client-key"})
        assert served.service.requests[0].key_name == "other"


async def test_a_preflight_needs_no_key_and_allows_the_page_that_asks():
    async with serving() as served, served.http(authorization="") as http:
        response = await http.options(CHAT, headers={"origin": "http://page.example"})
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "http://page.example"
        assert "POST" in response.headers["access-control-allow-methods"]


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
