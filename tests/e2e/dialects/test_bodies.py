"""Bodies that are not JSON or not text, to real nodes: a clean refusal in strict UTF-8 JSON, never a fault or silence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acceptance.cluster import SMOL
from tests.e2e.dialects.places import CHAT, Place
from tests.e2e.dialects.reading import MESSAGES, assert_refused, strict_json

pytestmark = pytest.mark.slow

PATHS = [CHAT, "/v1/completions", MESSAGES, "/v1/responses"]
JSON_TYPE = {"content-type": "application/json"}
SURROGATE = "x" + chr(0x5C) + "ud800"


def body(path: str, content: str, **extra: Any) -> dict[str, Any]:
    key, said = {
        "/v1/completions": ("prompt", content),
        "/v1/responses": ("input", content),
    }.get(path, ("messages", [{"role": "user", "content": content}]))
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    return {"model": SMOL, limit: 16 if path == "/v1/responses" else 2, key: said, **extra}


def raw(path: str, content: str, encoding: str = "utf-8") -> bytes:
    return json.dumps(body(path, content), ensure_ascii=False).encode(encoding)


@pytest.mark.parametrize("path", PATHS)
def test_what_is_not_json_in_utf8_is_refused(place: Place, path: str) -> None:
    broken: dict[str, tuple[bytes, dict[str, str]]] = {
        "half an object": (b"{:", {}),
        "nothing": (b"", {}),
        "a byte that is not UTF-8": (raw(path, "a@b").replace(b"@", b"\xff"), {}),
        "GBK": (raw(path, "你好", "gbk"), {}),
        "UTF-16": (raw(path, "hi", "utf-16"), {}),
        "a byte order mark": (b"\xef\xbb\xbf" + raw(path, "hi"), {}),
        "junk said to be gzip": (b"junk junk junk", {"content-encoding": "gzip"}),
        "an array": (b"[]", {}),
        "a number": (b"5", {}),
        "null": (b"null", {}),
    }
    for name, (content, headers) in broken.items():
        assert assert_refused(path, place.post(path, content, headers={**JSON_TYPE, **headers}), 400), name
    place.assert_alive()


@pytest.mark.parametrize("path", PATHS)
def test_lone_surrogates_are_refused_wherever_they_are(place: Place, path: str) -> None:
    marker = "MARKER"
    stops = "stop_sequences" if path == MESSAGES else "stop"
    tool = {"name": marker, "input_schema": {"type": "object"}}
    if path == CHAT:
        tool = {"type": "function", "function": {"name": marker, "parameters": {"type": "object"}}}
    places = {
        "content": body(path, marker),
        "model": {**body(path, "hi"), "model": marker},
        "stop": body(path, "hi", **{stops: [marker]}),
        "tool name": body(path, "hi", tools=[tool]),
    }
    for name, made in places.items():
        content = json.dumps(made).replace(marker, SURROGATE).encode()
        assert assert_refused(path, place.post(path, content, headers=JSON_TYPE), 400), name
    place.assert_alive()


@pytest.mark.parametrize("path", PATHS)
def test_nul_is_text_and_another_content_type_is_415(place: Place, path: str) -> None:
    reply = place.post(path, body(path, "a" + chr(0) + "b"))
    assert reply.status_code == 200, reply.text
    strict_json(reply.content)
    reply = place.post(path, raw(path, "hi"), headers={"content-type": "text/plain"})
    assert reply.status_code == 415
    strict_json(reply.content)
    place.assert_alive()
