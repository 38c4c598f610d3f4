"""One answer in sealed frames, begun early with frames that say nothing where it takes long to make (docs/peers.md)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from saiserve.engines.engine import Heard, HopError
from saiserve.peers.asgi import Send, answer_bytes, answer_text, opening
from saiserve.peers.wire import FrameSealer
from swimcluster.nursery import open_plain_nursery

log = logging.getLogger(__name__)

SIGN_S = 5.0
"""Between signs of life ahead of an answer, at least."""
PIECE_BYTES = 1024 * 1024
"""Long answers are cut into frames of this size."""


class SealedReply:
    """The reply to one question. Call `end` or `break_off` once."""

    def __init__(self, sealer: FrameSealer, send: Send) -> None:
        self._sealer = sealer
        self._send = send
        self._has_begun = False
        self._is_heard = False

    async def while_heard(self, ask: Callable[[Heard], Awaitable[bytes]]) -> bytes:
        """Put a question to an engine; what is heard of it meanwhile goes on to whoever asked.

        Raises:
            HopError: the way to the engine broke.
        """
        outcome: list[bytes | HopError] = []
        done = trio.Event()

        async def main() -> None:
            try:
                outcome.append(await ask(self._hear))
            except HopError as error:
                outcome.append(error)
            done.set()

        async with open_plain_nursery() as nursery:
            nursery.start_soon(main)
            while not done.is_set():
                with trio.move_on_after(SIGN_S):
                    await done.wait()
                if self._is_heard and not done.is_set():
                    await self._sign()
        (answer,) = outcome
        if isinstance(answer, HopError):
            raise answer
        return answer

    def _hear(self) -> None:
        self._is_heard = True

    async def _sign(self) -> None:
        self._is_heard = False
        if not self._has_begun:
            self._has_begun = True
            await self._send(opening(200, [(b"content-type", b"application/octet-stream")]))
        await self._send({"type": "http.response.body", "body": self._sealer.data(b""), "more_body": True})

    async def end(self, answer: bytes) -> None:
        """The answer, in the last frames."""
        pieces = [answer[at : at + PIECE_BYTES] for at in range(0, len(answer), PIECE_BYTES)] or [b""]
        frames = b"".join([*(self._sealer.data(piece) for piece in pieces[:-1]), self._sealer.last(pieces[-1])])
        if self._has_begun:
            await self._send({"type": "http.response.body", "body": frames, "more_body": False})
        else:
            await answer_bytes(self._send, 200, frames)

    async def break_off(self, reason: str) -> None:
        """There is no answer: a sentence or, once it has begun, an end without the frame that closes it."""
        if self._has_begun:
            log.info("an answer broke off: %s", reason)
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await answer_text(self._send, 502, reason)
