"""Messages about one request between the supervisor's reader, which never waits, and a task that may be slow."""

from __future__ import annotations

from collections import deque

import msgspec
import trio

from saiserve import limits
from saiserve.engines.engine import HopError
from saiserve.engines.messages import (
    Accepted,
    EngineReply,
    Failed,
    FailureKind,
    Progress,
    RefusalReason,
    Refused,
    Tokens,
    is_terminal,
)
from saiserve.engines.token_runs import merged


class Mailbox:
    """A queue whose length is bounded by merging: a late reader gets several tokens in one message."""

    def __init__(self, request_id: str, *, streams: bool = True) -> None:
        self.request_id = request_id
        self.streams = streams
        """Whether it awaits a stream and not a single answer."""
        self.accepted = False
        self.prefilled = 0
        """Of the last progress heard."""
        self.heard_at = trio.current_time()
        """When the last message came, or the request was made."""
        self._messages: deque[msgspec.Struct] = deque()
        self._broken: HopError | None = None
        self._readers = trio.lowlevel.ParkingLot()

    def put(self, message: msgspec.Struct) -> None:
        """Add a message; never waits."""
        self.heard_at = trio.current_time()
        if isinstance(message, Accepted):
            self.accepted = True
        elif isinstance(message, Progress):
            self.prefilled = message.prefilled
        full = len(self._messages) >= limits.STREAM_BUFFER_MESSAGES
        last = self._messages[-1] if self._messages else None
        if isinstance(message, Progress) and isinstance(last, Progress):
            self._messages[-1] = message
        elif full and isinstance(message, Tokens) and isinstance(last, Tokens):
            self._messages[-1] = merged(last, message)
        else:
            self._messages.append(message)
        self._readers.unpark_all()

    def process_ended(self, kind: FailureKind, detail: str) -> None:
        """The engine process is gone, for this reason; nothing more comes.

        A stream fails, also one that was not accepted yet: reading a prompt runs a template and a tokenizer. Only an
        unloading refuses what it had not accepted. Whoever awaits a single answer gets a HopError.
        """
        if not self.streams:
            self._broken = HopError(detail, sent=True)
            self._readers.unpark_all()
        elif kind is FailureKind.UNLOADED and not self.accepted:
            self.put(Refused(self.request_id, RefusalReason.NO_MODEL, detail))
        else:
            self.put(Failed(self.request_id, kind, detail))

    async def get(self) -> msgspec.Struct:
        """The next message; waits for it. Raises HopError when there will be none."""
        while not self._messages:
            if self._broken is not None:
                raise self._broken
            await self._readers.park()
        return self._messages.popleft()


class Replies:
    """The messages of one answer, up to the terminal one."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._over = False

    def __aiter__(self) -> Replies:
        return self

    async def __anext__(self) -> EngineReply:
        if self._over:
            raise StopAsyncIteration
        message: EngineReply = await self._mailbox.get()  # type: ignore[assignment]
        self._over = is_terminal(message)
        return message
