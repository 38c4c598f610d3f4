"""An answer given before its request's body was read must not leave the client on a connection that then closes.

Whoever answers without reading (no such path, wrong method, no key, too large) leaves bytes on the connection. A short body
is read off first, so that the connection can be used again; after a longer one it is said that the connection closes
(RFC 9112 §9.3, §9.6).
"""

from __future__ import annotations

import trio

from saiserve import limits
from saiserve.api.http import Message, Receive, Send

_BODY_HEADERS = {b"content-length", b"transfer-encoding"}


class UnreadBody:
    """Stands between one request and its application: `receive` and `send` replace the server's."""

    def __init__(self, headers: list[tuple[bytes, bytes]], receive: Receive, send: Send) -> None:
        told = {name: value for name, value in headers if name in _BODY_HEADERS}
        self._is_short = told.keys() == {b"content-length"} and _is_short(told[b"content-length"])
        self._is_read = not told
        self._is_begun = False
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        """Take the next message from the server, and note whether it was the body's last."""
        self._is_begun = True
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._is_read = True
        return message

    async def send(self, message: Message) -> None:
        """Send; before the head of an answer goes out, see to what was not read."""
        if message["type"] == "http.response.start" and not self._is_read:
            if self._is_short and not self._is_begun:
                with trio.move_on_after(limits.UNREAD_BODY_S):
                    while not self._is_read:
                        await self.receive()
            if not self._is_read:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await self._send(message)


def _is_short(length: bytes) -> bool:
    return length.isdigit() and int(length[:20]) <= limits.UNREAD_BODY_BYTES_MAX
