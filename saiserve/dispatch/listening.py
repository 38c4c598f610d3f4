"""Ends an attempt whose place says nothing for too long, and does so beside the messages, which have no time for deadlines."""

from __future__ import annotations

import trio

from saiserve.dispatch.attempt import NS, Attempt
from saiserve.dispatch.clock import clock_ns


class Listening:
    """Watches one attempt's deadline. While the client keeps us from listening, a silence is not the place's."""

    def __init__(self, attempt: Attempt) -> None:
        self.is_kept = False
        """Whether what came last is still being passed on."""
        self._attempt = attempt
        self._nap = trio.CancelScope()

    async def until_too_long(self, scope: trio.CancelScope) -> None:
        """Cancel `scope` once the attempt's deadline has passed; return when the attempt is over."""
        while (deadline := self._attempt.next_deadline()) is not None:
            now = clock_ns()
            if now < deadline:
                with trio.CancelScope(deadline=deadline / NS) as self._nap:
                    await trio.sleep_forever()
            elif self.is_kept:
                self._attempt.reader_caught_up(now)
            else:
                scope.cancel()
                return

    def look_again(self) -> None:
        """The deadline may have come nearer."""
        self._nap.cancel()
