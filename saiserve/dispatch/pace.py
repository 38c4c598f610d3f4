"""How far one choice's prompt is, and how long prompt and answer took: from the engine's messages and the clock."""

from __future__ import annotations

from saiserve.chat.events import PromptProgress
from saiserve.dispatch.attempt import NS
from saiserve.engines.messages import Finished


class Pace:
    """Watches one choice over all its attempts. Times are nanoseconds of one clock.

    The engine's own durations count where it told them; a choice that the entry node ended (a stop string) has those
    between its messages instead.
    """

    def __init__(self) -> None:
        self.prompt_s = 0.0
        self.decode_s = 0.0
        self._accepted_at = 0
        self._first_at = 0
        self._total = 0
        self._cached = 0
        self._processed = -1

    def accepted(self, now: int, total: int, cached: int) -> PromptProgress | None:
        """A place took the request. The first progress says what need not be computed; a later attempt begins none."""
        self._accepted_at = now
        if self._processed >= 0:
            return None
        self._total, self._cached, self._processed = total, cached, cached
        return PromptProgress(cached, total, cached)

    def progressed(self, prefilled: int) -> PromptProgress | None:
        """So many prompt tokens are done; None when that is no news."""
        if self._processed < 0 or not self._processed < prefilled <= self._total:
            return None
        self._processed = prefilled
        return PromptProgress(prefilled, self._total, self._cached)

    def tokens(self, now: int) -> PromptProgress | None:
        """A token came, so the prompt is done."""
        if not self._first_at:
            self._first_at = now
            self.prompt_s = (now - self._accepted_at) / NS
        self.decode_s = (now - self._first_at) / NS
        return self.progressed(self._total)

    def finished(self, message: Finished) -> None:
        """The engine ended the answer itself."""
        self.prompt_s = message.prefill_s or self.prompt_s
        self.decode_s = message.decode_s or self.decode_s
