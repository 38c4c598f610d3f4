"""Web pages of other origins: which may read answers, and that none gets any without a key."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from saiserve.api.context import Api
from saiserve.api.cors import Origins
from saiserve.app import create_app
from saiserve.auth import Auth, ClientKey
from saiserve.config import load_settings
from tests.fakes.service import ScriptedService

KEY = b"client-key-of-the-tests"


async def ask(method: str, path: str, origins: Origins, **headers: str) -> tuple[int, dict[str, str]]:
    """Return status and headers of an answer, without a socket."""
    app = create_app(Api(ScriptedService()), Auth([ClientKey("tests", KEY)]), origins=origins)
    given: list[Any] = [{"type": "http.request", "body": b"", "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return given.pop() if given else await trio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": raw}
    await app({**scope, "query_string": b"", "http_version": "1.1"}, receive, send)
    start = sent[0]
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}


@pytest.mark.parametrize("origin", ["https://web.example", "http://localhost:3000", "null"])
async def test_by_default_a_page_of_any_origin_is_answered_and_needs_a_key_like_everyone(origin: str) -> None:
    status, headers = await ask("OPTIONS", "/v1/chat/completions", Origins(), origin=origin)
    assert status == 200
    assert headers["access-control-allow-origin"] == origin
    assert headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
    assert headers["access-control-allow-headers"] == "*"
    assert headers["vary"] == "Origin"
    status, headers = await ask("GET", "/v1/models", Origins(), origin=origin)
    assert status == 401
    assert headers["access-control-allow-origin"] == origin, "so that the page can read what is wrong"
    status, _ = await ask("GET", "/v1/models", Origins(), origin=origin, authorization=f"Bearer {KEY.decode()}")
    assert status == 200


@pytest.mark.parametrize(
    ("requested", "allowed"),
    [
        ("authorization, content-type", "authorization, content-type"),
        ("x-api-key,anthropic-version", "x-api-key,anthropic-version"),
        ("", "*"),
        ("a\r\nset-cookie: b", "*"),
        ("a," * 600 + "a", "*"),
    ],
)
async def test_the_headers_a_page_asks_for_are_named_back_as_a_star_covers_no_key(requested: str, allowed: str) -> None:
    asked = {"origin": "https://web.example", "access_control_request_headers": requested}
    _, headers = await ask("OPTIONS", "/v1/messages", Origins(), **asked)
    assert headers["access-control-allow-headers"] == allowed
    assert "x-sai-route" in headers["access-control-expose-headers"]


LOCAL = ["http://localhost", "https://localhost:8080", "http://127.0.0.1:3000", "http://[::1]", "http://[::1]:3000"]
STRANGE = [
    "http://evil.example",
    "http://notlocalhost",
    "http://localhost.evil.example",
    "http://127.0.0.1.evil.example",
]
BROKEN = [
    "null",
    "file://",
    "http://[::1",
    "ftp://localhost",
    "http://evil.example@localhost.evil.example",
]


@pytest.mark.parametrize(
    ("origin", "may"), [*((one, True) for one in LOCAL), *((one, False) for one in STRANGE + BROKEN)]
)
async def test_localhost_means_pages_of_this_machine_alone(origin: str, may: bool) -> None:
    status, headers = await ask("OPTIONS", "/v1/chat/completions", Origins(("localhost",)), origin=origin)
    assert status == 200
    assert headers.get("access-control-allow-origin") == (origin if may else None)
    assert headers["vary"] == "Origin", "a cache must not give one page the answer to another"


async def test_named_origins_are_compared_whole() -> None:
    named = Origins(("https://web.example",))
    for origin in ("https://web.example", "http://web.example", "https://web.example:8443", "https://a.web.example"):
        _, headers = await ask("OPTIONS", "/", named, origin=origin)
        assert ("access-control-allow-origin" in headers) == (origin == "https://web.example")


async def test_who_is_no_web_page_is_told_nothing_of_origins() -> None:
    _, headers = await ask("GET", "/health", Origins())
    assert not {"access-control-allow-origin", "vary"} & headers.keys()


def test_the_setting_names_origins() -> None:
    asked = {"CORS_ORIGINS": "localhost, https://web.example"}
    assert load_settings(asked, {}).cors_origins == ("localhost", "https://web.example")
    assert load_settings({}, {}).cors_origins == ("*",)


def test_a_node_without_a_key_of_its_own_draws_one_so_that_no_page_finds_it_open() -> None:
    settings = load_settings({}, {})
    assert settings.api_key_generated
    assert len(settings.api_keys[0].secret) > 30
