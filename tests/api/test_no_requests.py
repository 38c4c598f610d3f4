"""Bytes that are no request of HTTP/1.1 are answered in the words of every other error, and the connection ends."""

from __future__ import annotations

import json
import socket
from contextlib import suppress

import pytest
import trio

from saiserve.http_faults import PARSER_FAULTS, parser_fault
from tests.api.serving import KEY, Served, serving

HEAD = b"GET /health HTTP/1.1\r\nHost: n\r\n"
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n"
CHUNKED = CHAT + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
TLS_HELLO = bytes.fromhex("16030100a5010000a10303") + bytes(160)

NO_REQUESTS = {
    "words": (b"hello there\r\n\r\n", 400, "no request line"),
    "tls": (TLS_HELLO, 400, "not https://"),
    "no method": (b" / HTTP/1.1\r\n\r\n", 400, "METHOD /path HTTP/1.1"),
    "half a version": (b"GET /health HTTP/3\r\nHost: n\r\n\r\n", 400, "METHOD /path HTTP/1.1"),
    "other version": (b"GET /health HTTP/2.0\r\nHost: n\r\n\r\n", 505, "HTTP/2.0 is not spoken here: send HTTP/1.1"),
    "later version": (b"GET /health HTTP/1.2\r\nHost: n\r\n\r\n", 505, "HTTP/1.2 is not spoken"),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400, "no Host header"),
    "two hosts": (HEAD + b"Host: m\r\n\r\n", 400, "several Host headers"),
    "header": (HEAD + b"no colon\r\n\r\n", 400, "Name: value"),
    "control character": (HEAD + b"A: b\x00c\r\n\r\n", 400, "Name: value"),
    "folded first": (b"GET /health HTTP/1.1\r\n Host: n\r\n\r\n", 400, "Name: value"),
    "large head": (HEAD + b"A: " + b"a" * 20_000, 431, "fewer or shorter"),
    "very large head": (HEAD + b"A: " + b"a" * 3_000_000, 431, "fewer or shorter"),
    "length": (CHAT + b"Content-Length: ten\r\n\r\n", 400, "one Content-Length"),
    "lengths": (CHAT + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "one Content-Length"),
    "coding": (CHAT + b"Transfer-Encoding: gzip\r\n\r\n", 501, "send chunked"),
    "codings": (CHAT + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 501, "send one"),
    "both lengths": (CHAT + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "not both"),
    "chunk header": (CHUNKED + b"ten\r\n", 400, "hexadecimal"),
    "chunk footer": (CHUNKED + b"2\r\n{}}\r\n", 400, "hexadecimal"),
    "long chunk header": (CHUNKED + b"1" * 20_000, 431, "the line before a chunk"),
    "trailer": (CHUNKED + b"2\r\n{}\r\n0\r\nno colon\r\n\r\n", 400, "Name: value"),
}


async def ask(served: Served, data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send all of it, then read to the end; a plain blocking socket, as a client's."""

    def exchange() -> bytes:
        with socket.create_connection(served.address, timeout=30) as connection:
            connection.sendall(data)
            return b"".join(iter(lambda: connection.recv(65_536), b""))

    top, _, body = (await trio.to_thread.run_sync(exchange)).partition(b"\r\n\r\n")
    status, *lines = top.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(status.split()[1]), headers, body


def check_error(answer: tuple[int, dict[str, str], bytes], status: int, words: str) -> None:
    found, headers, body = answer
    assert found == status
    assert headers["content-type"] == "application/json"
    assert headers["content-length"] == str(len(body))
    assert headers["connection"] == "close"
    assert headers["x-request-id"] == headers["request-id"]
    assert headers["x-request-id"].startswith("req_")
    (error,) = json.loads(body).values()
    assert error.keys() == {"message", "type", "param", "code"}
    assert words in error["message"]
    assert error["message"].endswith(".")


@pytest.mark.parametrize(("data", "status", "words"), NO_REQUESTS.values(), ids=NO_REQUESTS)
async def test_what_is_no_request_is_told_what_is_wrong_and_how_to_mend_it(data: bytes, status: int, words: str):
    async with serving() as served:
        check_error(await ask(served, data), status, words)
        async with served.http() as client:
            assert (await client.get("/health")).status_code == 200


async def test_the_answer_behind_a_good_one_is_its_own():
    async with serving() as served:
        _, headers, rest = await ask(served, HEAD + b"\r\n" + b"nonsense\r\n\r\n")
    size = int(headers["content-length"])
    assert json.loads(rest[:size]) == {"status": "ok"}
    top, _, body = rest[size:].partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 400 ")
    assert "no request line" in json.loads(body)["error"]["message"]


async def test_a_head_request_is_refused_without_a_body():
    async with serving() as served:
        status, headers, body = await ask(served, b"HEAD /health HTTP/2.0\r\nHost: n\r\n\r\n")
    assert (status, body) == (505, b"")
    assert int(headers["content-length"]) > 0


async def test_a_body_in_disorder_behind_its_answer_gets_no_second_one():
    async with serving() as served, await trio.open_tcp_stream(*served.address) as connection:
        await connection.send_all(CHUNKED.replace(b"/v1/chat/completions", b"/nowhere"))
        with trio.fail_after(30):
            seen = await connection.receive_some()
            assert seen.startswith(b"HTTP/1.1 404 ")
            with suppress(trio.BrokenResourceError):
                await connection.send_all(b"nonsense\r\n")
                while part := await connection.receive_some():
                    seen += part
    assert seen.count(b"HTTP/1.1 ") == 1


async def test_a_refused_client_that_stays_is_let_go():
    async with serving() as served, await trio.open_tcp_stream(*served.address) as connection:
        await connection.send_all(b"nonsense\r\n\r\n")
        with trio.fail_after(30):
            while await connection.receive_some():
                pass
            with suppress(trio.BrokenResourceError):
                while True:
                    await connection.send_all(b"more\r\n" * 1_000)
                    await trio.sleep(0.01)


def test_what_the_table_does_not_know_is_told_in_the_parser_s_words():
    error = parser_fault("something new " + "x" * 500)
    assert "something new" in error.message
    assert len(error.message) < 250
    assert all(not sentence.endswith(".") for _, sentence in PARSER_FAULTS.values())
