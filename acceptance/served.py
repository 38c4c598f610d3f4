"""Requests as a client makes them that heeds 503: a node is not asked for what stands with another that stood still."""

from __future__ import annotations

from typing import Any, Final

import httpx2
import trio

SERVED_S: Final = 120.0
"""Longest wait until a member that the machine held up is asked again."""
AGAIN_S: Final = 0.5


def is_for_later(reply: httpx2.Response) -> bool:
    """Whether it says that the model is there, cannot be had this moment, and when to ask again; in any dialect."""
    return reply.status_code == 503 and "retry-after" in reply.headers and "try again" in reply.text


async def post_served(client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> httpx2.Response:
    """The reply to a request, which is made again as long as it is for later; the last such reply after `SERVED_S`."""
    until = trio.current_time() + SERVED_S
    while is_for_later(reply := await client.post(path, json=body)) and trio.current_time() < until:
        await trio.sleep(AGAIN_S)
    return reply
