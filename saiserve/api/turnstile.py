"""Lets requests into the work of answering them one at a time, in order, so that a burst does not hold up the rest.

Decoding and placing a request takes some milliseconds of the event loop. Two hundred at once would do theirs in one turn of
the loop, and a health probe would wait for all of them; one in each turn leaves room for whoever is beside them.
"""

from __future__ import annotations

import trio


class Turnstile:
    """One per application. Waiting costs nothing, and nothing has been begun for who waits."""

    def __init__(self) -> None:
        self._lock = trio.StrictFIFOLock()

    async def pass_through(self) -> None:
        """Wait for this request's turn; returns in a turn of the loop that no other request gets."""
        async with self._lock:
            await trio.lowlevel.checkpoint()
