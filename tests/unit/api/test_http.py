"""Reading requests, without a socket."""

from __future__ import annotations

import pytest
import trio

from saiserve.api.body import decompress
from saiserve.api.http import acceptable_request_id, read_body
from saiserve.errors import ApiError, ErrorKind


@pytest.mark.autojump
async def test_a_body_that_stops_coming_is_408():
    async def receive():
        return await trio.sleep_forever()

    with pytest.raises(ApiError) as caught:
        await read_body(receive, "", 100)
    assert caught.value.row.status == 408


async def test_a_body_in_pieces_is_whole_and_one_too_large_is_413():
    def pieces(*chunks):
        messages = [
            {"type": "http.request", "body": chunk, "more_body": at < len(chunks) - 1}
            for at, chunk in enumerate(chunks)
        ]

        async def receive():
            return messages.pop(0)

        return receive

    assert await read_body(pieces(b"ab", b"", b"c"), "", 3) == b"abc"
    for length, receive in (("", pieces(b"ab", b"cd")), ("4", pieces(b"abcd")), ("9" * 40, pieces(b""))):
        with pytest.raises(ApiError) as caught:
            await read_body(receive, length, 3)
        assert caught.value.kind is ErrorKind.BODY_TOO_LARGE


def test_a_small_body_that_inflates_beyond_the_limit_is_413():
    import zlib

    with pytest.raises(ApiError) as caught:
        decompress(zlib.compress(b"x" * 10_000_000), "deflate", 1_000_000)
    assert caught.value.kind is ErrorKind.BODY_TOO_LARGE


def test_bytes_behind_the_compressed_body_are_refused():
    import zlib

    for behind in (b"x", zlib.compress(b"y")):
        with pytest.raises(ApiError) as caught:
            decompress(zlib.compress(b"{}") + behind, "deflate")
        assert caught.value.kind is ErrorKind.INVALID_REQUEST


@pytest.mark.parametrize("text", ["", "a b", "é", "a\r\nb", "x" * 129, "a\n"])
def test_request_ids_that_could_forge_a_line_are_refused(text):
    assert not acceptable_request_id(text)
