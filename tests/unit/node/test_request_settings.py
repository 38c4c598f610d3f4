"""What an operator says of requests: how large they may be, and where their images may come from."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from saiserve.api.context import Api
from saiserve.app import create_app
from saiserve.auth import Auth, ClientKey
from saiserve.config import load_settings
from saiserve.errors import SettingsError
from tests.fakes.service import ScriptedService


def test_no_host_is_listed_and_bodies_have_64_mib_by_default() -> None:
    settings = load_settings({}, {})
    assert (settings.image_urls, settings.body_mib) == ((), 64)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("Images.example, 192.0.2.7", ("images.example", "192.0.2.7")),
        ("*", ("*",)),
        ("[2001:db8::1]", ("2001:db8::1",)),
        ("localhost.", ("localhost",)),
    ],
)
def test_hosts_of_images_are_listed(text: str, hosts: tuple[str, ...]) -> None:
    assert load_settings({"IMAGE_URLS": text}, {}).image_urls == hosts


@pytest.mark.parametrize(
    "text", ["https://images.example", "images.example:8080", "images.example/a", "*.example", "a b", "abc:80"]
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"IMAGE_URLS .* must be hosts"):
        load_settings({"IMAGE_URLS": text}, {})


@pytest.mark.parametrize("text", ["0", "65", "1.5"])
def test_bodies_have_at_least_one_and_at_most_64_mib(text: str) -> None:
    with pytest.raises(SettingsError, match="BODY_MIB"):
        load_settings({"BODY_MIB": text}, {})


@pytest.mark.parametrize(("size", "status"), [(1 << 20, 400), ((1 << 20) + 1, 413)])
@pytest.mark.parametrize("is_told", [True, False])
async def test_a_body_beyond_the_setting_is_413(size: int, status: int, is_told: bool) -> None:
    app = create_app(Api(ScriptedService()), Auth([ClientKey("t", b"key")]), body_bytes_max=1 << 20)
    given = [{"type": "http.request", "body": b" " * size, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return given.pop() if given else await trio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"x-api-key", b"key"), *([(b"content-length", str(size).encode())] if is_told else [])]
    scope = {"type": "http", "method": "POST", "path": "/v1/responses", "headers": headers, "query_string": b""}
    await app(scope, receive, send)
    assert sent[0]["status"] == status
