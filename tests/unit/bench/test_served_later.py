"""A reply that says when to ask again is no reply to a test of something else; any other is."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from acceptance.served import post_served

LATER = httpx2.Response(503, headers={"retry-after": "5"}, text="the model is known here: try again shortly")
GOOD = httpx2.Response(200, text="yes")


async def reply_to(*replies: httpx2.Response) -> tuple[int, int]:
    """The status that came, and after how many requests."""
    left = list(replies)

    class Client:
        async def post(self, path: str, *, json: Any) -> httpx2.Response:
            return left.pop(0)

    client: Any = Client()
    reply = await post_served(client, "/v1/chat/completions", {})
    return reply.status_code, len(replies) - len(left)


@pytest.mark.autojump
async def test_what_is_for_later_is_asked_for_again_and_not_for_ever() -> None:
    assert await reply_to(LATER, LATER, GOOD) == (200, 3)
    assert (await reply_to(*[LATER] * 1_000))[0] == 503


@pytest.mark.autojump
@pytest.mark.parametrize(
    "reply",
    [
        GOOD,
        httpx2.Response(503, text="this node is stopping: try again elsewhere"),
        httpx2.Response(503, headers={"retry-after": "1"}, text="every place is taken"),
        httpx2.Response(500, headers={"retry-after": "1"}, text="try again"),
    ],
)
async def test_any_other_reply_is_the_reply(reply: httpx2.Response) -> None:
    assert await reply_to(reply, GOOD) == (reply.status_code, 1)
