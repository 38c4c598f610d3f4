"""Who gets in: each way to show a key, none without, and no variant of a path around the question."""

from __future__ import annotations

from tests.api.serving import CHAT, HI, KEY, SECRET, assert_refused, raw_exchange, serving, strict
from tests.fakes.service import ScriptedService


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
