"""What a broken or hostile body gets on the OpenAI-shaped routes: the right status, the right field, always JSON."""

from __future__ import annotations

import gzip
import json

import pytest

from saiserve import limits
from tests.api.serving import CHAT, HI, KEY, assert_refused, raw_exchange, serving, strict

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
