"""Images named by a URL: refused unless the operator lists their host, fetched within bounds when it does."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio

from saiserve import limits
from saiserve.api.image_hosts import ImageHosts, Place, is_public, media_type_of, place_of
from saiserve.api.remote_images import RemoteImages
from saiserve.chat.request import ImagePart
from saiserve.errors import ApiError
from tests.api.serving import serving
from tests.fakes.service import CARD, ScriptedService

PNG = b"\x89PNG\r\n\x1a\nrest of it"
SEEING = replace(CARD, capabilities=CARD.capabilities | {"vision"})


def answer(body: bytes = PNG, status: str = "200 OK", *headers: str, length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body) if length is None else length}", "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass
class Pictures:
    """A server of scripted replies on loopback, by path; None never comes."""

    replies: dict[str, bytes | None]
    port: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and Host header."""

    def url(self, path: str = "/a.png", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, stream: trio.SocketStream) -> None:
        head = b""
        async with stream:
            while b"\r\n\r\n" not in head:
                head += await stream.receive_some()
            lines = head.decode().split("\r\n")
            path = lines[0].split()[1]
            self.asked.append((path, next(line[6:] for line in lines if line.lower().startswith("host: "))))
            reply = self.replies.get(path, answer(b"", "404 Not Found"))
            if reply is None:
                await trio.sleep_forever()
            await stream.send_all(reply or b"")


@asynccontextmanager
async def pictures(**replies: bytes | None) -> AsyncIterator[Pictures]:
    server = Pictures({f"/{name.replace('_', '.')}": reply for name, reply in replies.items()})
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        yield server
        nursery.cancel_scope.cancel()


ROUTES: dict[str, Any] = {
    "/v1/chat/completions": lambda url: {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    },
    "/v1/responses": lambda url: {
        "input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]
    },
    "/v1/messages": lambda url: {
        "max_tokens": 5,
        "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": url}}]}],
    },
}  # fmt: skip
PARAMS = {
    "/v1/chat/completions": "messages[0].content[0].image_url",
    "/v1/responses": "input[0].content[0].image_url",
    "/v1/messages": "messages[0].content[0].source.url",
}


def listing(*names: str) -> RemoteImages:
    return RemoteImages(ImageHosts(names))


async def ask(images: RemoteImages | None, url: str, service: ScriptedService, route: str = "/v1/responses") -> Any:
    async with serving(service, images=images) as served, served.http() as http:
        return await http.post(route, json={"model": "smol", **ROUTES[route](url)})


async def refusal(images: RemoteImages | None, url: str) -> str:
    service = ScriptedService(cards=(SEEING,))
    reply = await ask(images, url, service)
    assert reply.status_code == 400, reply.text
    assert not service.requests
    error = reply.json()["error"]
    assert error["param"] == PARAMS["/v1/responses"]
    return str(error["message"])


@pytest.mark.parametrize("route", list(ROUTES))
async def test_without_the_setting_every_url_is_refused_and_nobody_asked(route: str) -> None:
    async with pictures(a_png=answer()) as server:
        reply = await ask(None, server.url(), ScriptedService(cards=(SEEING,)), route)
        assert reply.status_code == 400
        assert PARAMS[route] in reply.text
        assert not server.asked


@pytest.mark.parametrize("route", [*ROUTES, "/v1/messages/count_tokens", "/apply-template"])
async def test_an_image_of_a_listed_host_reaches_the_model(route: str) -> None:
    service = ScriptedService(cards=(SEEING,))
    bodies = {"/v1/messages/count_tokens": "/v1/messages", "/apply-template": "/v1/chat/completions"}
    async with pictures(a_png=answer(PNG, "200 OK", "Content-Type: text/plain")) as server:
        body = {"model": "smol", **ROUTES[bodies.get(route, route)](server.url())}
        async with serving(service, images=listing("127.0.0.1")) as served, served.http() as http:
            assert (await http.post(route, json=body)).status_code == 200
    assert (service.requests[0].messages or ())[0].parts == (ImagePart("image/png", PNG),)
    assert server.asked == [("/a.png", f"127.0.0.1:{server.port}")]


async def test_what_is_kept_of_a_response_holds_the_image_itself() -> None:
    service = ScriptedService(cards=(SEEING,))
    async with pictures(a_png=answer()) as server:
        async with serving(service, images=listing("127.0.0.1")) as served, served.http() as http:
            first = (
                await http.post("/v1/responses", json={"model": "smol", **ROUTES["/v1/responses"](server.url())})
            ).json()
            again = {"model": "smol", "previous_response_id": first["id"], "input": "more"}
            assert (await http.post("/v1/responses", json=again)).status_code == 200
        assert len(server.asked) == 1
    assert (service.requests[1].messages or ())[0].parts == (ImagePart("image/png", PNG),)


async def test_a_model_that_does_not_see_has_nothing_fetched() -> None:
    async with pictures(a_png=answer()) as server:
        reply = await ask(listing("127.0.0.1"), server.url(), ScriptedService())
        assert reply.status_code == 400
        assert "does not see" in reply.text
        assert not server.asked


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]"]
)
async def test_the_inside_is_not_reached_by_allowing_all(host: str) -> None:
    async with pictures(a_png=answer()) as server:
        await refusal(listing("*"), server.url(host=host))
        assert not server.asked


@pytest.mark.parametrize("host", ["a" * 70 + ".example", "a..b"])
async def test_a_name_that_nobody_can_have_has_no_address(host: str) -> None:
    assert "has no address" in await refusal(listing("*"), f"http://{host}/a.png")


class Names(trio.abc.HostnameResolver):
    """A name server of one address."""

    async def getaddrinfo(self, host: Any, port: Any, *_: Any, **__: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


async def test_a_name_that_leads_inside_must_be_listed_itself() -> None:
    trio.socket.set_custom_hostname_resolver(Names())
    async with pictures(a_png=answer()) as server:
        url = server.url(host="Pictures.example")
        assert "not on the public internet" in await refusal(listing("*"), url)
        assert "are not fetched from pictures.example" in await refusal(listing("other.example"), url)
        assert not server.asked
        assert (await ask(listing("pictures.example"), url, ScriptedService(cards=(SEEING,)))).status_code == 200
        assert server.asked == [("/a.png", f"pictures.example:{server.port}")]


def moved(to: str) -> bytes:
    return answer(b"", "302 Found", f"Location: {to}")


async def test_redirects_follow_the_same_rules() -> None:
    async with pictures(a_png=answer(), there=moved("/a.png"), round=moved("/round")) as server:
        server.replies["/away"] = moved("http://elsewhere.example/a.png")
        server.replies["/inside"] = moved(f"http://localhost:{server.port}/a.png")
        server.replies["/file"] = moved("file:///etc/passwd")
        server.replies["/broken"] = moved("http://[")
        allowed = listing("127.0.0.1")
        assert (await ask(allowed, server.url("/there"), ScriptedService(cards=(SEEING,)))).status_code == 200
        assert "are not fetched from elsewhere.example" in await refusal(allowed, server.url("/away"))
        assert "are not fetched from localhost" in await refusal(allowed, server.url("/inside"))
        assert "no plain http" in await refusal(allowed, server.url("/file"))
        assert "no plain http" in await refusal(allowed, server.url("/broken"))
        assert "redirected more than" in await refusal(allowed, server.url("/round"))


async def test_what_is_too_large_or_no_image_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IMAGE_BYTES_MAX", 100)
    endless = f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{'64'}\r\n{'x' * 100}\r\n{'64'}\r\n{'x' * 100}\r\n"
    async with pictures(
        told=answer(PNG, length=101),
        endless=endless.encode(),
        text=answer(b"<svg>", "200 OK", "Content-Type: image/png"),
        zipped=answer(PNG, "200 OK", "Content-Encoding: gzip"),
        cut=answer(PNG, length=90),
        silent=b"",
    ) as server:
        allowed = listing("127.0.0.1")
        assert "larger than 100 bytes" in await refusal(allowed, server.url("/told"))
        assert "larger than 100 bytes" in await refusal(allowed, server.url("/endless"))
        assert "none of image/gif" in await refusal(allowed, server.url("/text"))
        assert "compresses it" in await refusal(allowed, server.url("/zipped"))
        assert "broke off" in await refusal(allowed, server.url("/cut"))
        assert "cannot be reached" in await refusal(allowed, server.url("/silent"))
        assert "answers 404" in await refusal(allowed, server.url("/none"))


@pytest.mark.parametrize("shown", ["abc", "aba", "aaa"])
async def test_all_images_of_a_request_share_a_bound_as_often_as_they_are_shown(
    shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "IMAGES_BYTES_MAX", 2 * len(PNG))
    async with pictures(a=answer(), b=answer(), c=answer()) as server:
        parts = [ImagePart("", url=server.url(f"/{name}"), at=f"input.{name}") for name in shown]
        assert set(await listing("127.0.0.1").fetch(parts[:2])) == {part.url for part in parts[:2]}
        with pytest.raises(ApiError, match=f"it is larger than .* bytes, what is left of {2 * len(PNG)} for all"):
            await listing("127.0.0.1").fetch(parts)


async def test_a_server_that_says_nothing_is_waited_for_no_longer_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "IMAGES_FETCH_S", 0.2)
    async with pictures(never=None) as server:
        assert "did not come within 0.2 s" in await refusal(listing("127.0.0.1"), server.url("/never"))


@pytest.mark.parametrize("differ", [True, False])
async def test_only_so_many_are_fetched_for_one_request(differ: bool) -> None:
    many = [
        {"type": "input_image", "image_url": f"http://127.0.0.1:1/{n * differ}"}
        for n in range(limits.IMAGES_FETCHED_MAX + 1)
    ]
    body = {"model": "smol", "input": [{"role": "user", "content": many}]}
    async with serving(ScriptedService(cards=(SEEING,)), images=listing("*")) as served, served.http() as http:
        reply = await http.post("/v1/responses", content=json.dumps(body))
        assert reply.status_code == 400
        assert "at most 16 images" in reply.text


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True), ("2606:4700::1111", True), ("127.0.0.1", False), ("10.1.2.3", False), ("172.16.0.1", False),
        ("192.168.1.1", False), ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False), ("224.0.0.1", False),
        ("255.255.255.255", False), ("::", False), ("::1", False), ("fe80::1%eth0", False), ("fc00::1", False), ("ff02::1", False),
        ("::ffff:10.0.0.1", False), ("::ffff:8.8.8.8", True), ("64:ff9b::7f00:1", False), ("64:ff9b::808:808", True),
        ("2002:7f00:1::", False), ("fec0::1", False), ("::7f00:1", False), ("no address", False),
    ],
)  # fmt: skip
def test_an_address_is_public_or_not(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://Web.Example./a?b#c", Place("https", "web.example", 443)),
        ("http://[2001:db8::1]:81/", Place("http", "2001:db8::1", 81)),
        ("ftp://web.example/a", None), ("http:///a", None), ("http://user:pw@web.example/", None), ("//web.example/a", None),
        ("http://web.example:99999/", None), ("http://web.example\\@10.0.0.1/", None), ("http://we b.example/", None),
        ("http://wéb.example/", None), ("http://web.example/\n", None), ("http://[", None), ("", None), ("http://" + "a" * 5000, None),
    ],
)  # fmt: skip
def test_a_url_leads_to_one_place_or_is_none(url: str, place: Place | None) -> None:
    assert place_of(url) == place


def test_the_first_bytes_say_what_an_image_is() -> None:
    assert media_type_of(b"\xff\xd8\xff\xe0") == "image/jpeg"
    assert media_type_of(b"RIFF0000WEBPVP8 ") == "image/webp"
    assert media_type_of(b"XXXX0000WEBP") == ""
    assert media_type_of(b"GIF89a") == "image/gif"
    assert media_type_of(b"") == ""
