"""One choice of an answer, from engine messages to events: whole characters, stop strings, log-probabilities.

Knows nothing of attempts: tokens of several places in a row look like one answer. Tool calls and reasoning are parsed
from the text by the dialects.
"""

from __future__ import annotations

from collections import deque

from saiserve.chat.events import ChoiceFinished, StopKind, TextDelta
from saiserve.chat.text import StopMatcher, Utf8Assembler
from saiserve.engines.messages import FinishReason, TokenLogprob, Tokens

_KINDS: dict[FinishReason, StopKind] = {
    FinishReason.STOP: StopKind.END,
    FinishReason.STOP_STRING: StopKind.STOP_STRING,
    FinishReason.LENGTH: StopKind.LENGTH,
}


class ChoiceText:
    """Turns the tokens of choice `choice` into its events.

    A log-probability goes out with the first text that reaches the end of its token; those of tokens that begin at or
    after a stop string are dropped with the text.
    """

    def __init__(self, choice: int, stops: tuple[str, ...] = ()) -> None:
        self.choice = choice
        self._utf8 = Utf8Assembler()
        self._stop = StopMatcher(stops)
        self._decoded = 0
        self._shown = 0
        self._logprobs: deque[tuple[int, int, TokenLogprob]] = deque()

    @property
    def stopped(self) -> bool:
        """Whether a stop string appeared, so that no more tokens are wanted."""
        return self._stop.found is not None

    def tokens(self, message: Tokens) -> list[TextDelta]:
        """The text these tokens make showable."""
        if self.stopped:
            return []
        if message.logprobs is None:
            return self._show(self._decode(message.data))
        events: list[TextDelta] = []
        for entry in message.logprobs:
            start = self._decoded
            text = self._decode(entry.piece)
            self._logprobs.append((start, self._decoded, entry))
            events += self._show(text)
        return events

    def finish(self, reason: FinishReason, stop_string: str | None = None) -> list[TextDelta | ChoiceFinished]:
        """Text held back until now, then the end. A stop string found here outranks the engine's reason."""
        events: list[TextDelta | ChoiceFinished] = []
        if not self.stopped:
            events += self._show(self._decode_rest())
        if not self.stopped:
            events += self._show_text(self._stop.finish(), is_last=True)
        kind = StopKind.STOP_STRING if self.stopped else _KINDS[reason]
        events.append(ChoiceFinished(self.choice, kind, self._stop.found or stop_string))
        return events

    def _decode(self, data: bytes) -> str:
        text = self._utf8.feed(data)
        self._decoded += len(text)
        return text

    def _decode_rest(self) -> str:
        text = self._utf8.finish()
        self._decoded += len(text)
        return text

    def _show(self, text: str) -> list[TextDelta]:
        return self._show_text(self._stop.feed(text), is_last=self.stopped)

    def _show_text(self, text: str, *, is_last: bool) -> list[TextDelta]:
        self._shown += len(text)
        ready: list[TokenLogprob] = []
        while self._logprobs and (
            self._logprobs[0][1] <= self._shown or (is_last and self._logprobs[0][0] < self._shown)
        ):
            if self._logprobs[0][1] == self._logprobs[0][0] and not is_last and self._utf8.pending:
                break
            ready.append(self._logprobs.popleft()[2])
        if not text and not ready:
            return []
        return [TextDelta(self.choice, text, tuple(ready) if ready else None)]
