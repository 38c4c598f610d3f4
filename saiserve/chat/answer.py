"""One choice of an answer, from engine messages to events: whole characters, stop strings, log-probabilities.

Knows nothing of attempts: tokens of several places in a row look like one answer. Tool calls and reasoning are parsed
from the text by the dialects; where reasoning ends is known here too, because no stop string holds inside it.
"""

from __future__ import annotations

from collections import deque

from saiserve.chat.events import ChoiceFinished, StopKind, TextDelta
from saiserve.chat.reasoning import AnswerFinder
from saiserve.chat.request import ReasoningMarks
from saiserve.chat.text import StopMatcher, Utf8Assembler
from saiserve.engines.messages import FinishReason, TokenLogprob, Tokens

_KINDS: dict[FinishReason, StopKind] = {
    FinishReason.STOP: StopKind.END,
    FinishReason.STOP_STRING: StopKind.STOP_STRING,
    FinishReason.LENGTH: StopKind.LENGTH,
}


class ChoiceText:
    """Turns the tokens of choice `choice` into its events.

    A log-probability goes out with the text that reaches the end of its token, so that the text between two of them is
    the later one's; a token without text goes with the next. Those of tokens that begin at or after a stop string are
    dropped with the text. With `marks` the watch for stop strings begins behind the reasoning.
    """

    def __init__(self, choice: int, stops: tuple[str, ...] = (), marks: ReasoningMarks | None = None) -> None:
        self.choice = choice
        self._utf8 = Utf8Assembler()
        self._stop = StopMatcher(stops)
        self._finder = AnswerFinder(marks) if stops and marks is not None else None
        self._decoded = 0
        self._shown = 0
        self._tokens: list[int] = []
        """Ids of tokens since the last delta."""
        self._logprobs: deque[tuple[int, int, TokenLogprob]] = deque()
        """(first character, character after the last, entry) of tokens whose text is not all shown."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string appeared, so that no more tokens are wanted."""
        return self._stop.found is not None

    def tokens(self, message: Tokens) -> list[TextDelta]:
        """The text these tokens make showable."""
        if self.stopped:
            return []
        entries = message.logprobs or ()
        if not entries:
            self._tokens += message.ids
            return self._show(self._watch(self._decode(message.data)))
        pieces = [entry.piece for entry in entries]
        if b"".join(pieces) != message.data:
            pieces = [*(b"" for _ in pieces[1:]), message.data]
        deltas: list[TextDelta] = []
        for entry, piece in zip(entries, pieces, strict=True):
            self._tokens.append(entry.token)
            start = self._decoded
            text = self._decode(piece)
            self._logprobs.append((start, self._decoded + bool(self._utf8.pending), entry))
            deltas += self._show(self._watch(text))
        return deltas

    def finish(self, reason: FinishReason, stop_string: str | None = None) -> list[TextDelta | ChoiceFinished]:
        """Text held back until now, then the end. A stop string found here outranks the engine's reason."""
        events: list[TextDelta | ChoiceFinished] = []
        if not self.stopped:
            tail = self._utf8.finish()
            self._decoded += len(tail)
            text = self._watch(tail)
            text += "" if self._finder is None or self.stopped else self._stop.feed(self._finder.finish())
            text += "" if self.stopped else self._stop.finish()
            events += self._show(text, is_end=True)
        kind = StopKind.STOP_STRING if self.stopped else _KINDS[reason]
        events.append(ChoiceFinished(self.choice, kind, self._stop.found or stop_string))
        return events

    def _watch(self, text: str) -> str:
        """Return what is safe to show of it."""
        if self._finder is None:
            return self._stop.feed(text)
        before, answer = self._finder.feed(text)
        return before + self._stop.feed(answer)

    def _decode(self, data: bytes) -> str:
        text = self._utf8.feed(data)
        self._decoded += len(text)
        return text

    def _show(self, text: str, *, is_end: bool = False) -> list[TextDelta]:
        self._shown += len(text)
        if not text and not is_end:
            return []
        ready: list[TokenLogprob] = []
        while self._logprobs and self._is_due(*self._logprobs[0][:2], is_end=is_end):
            ready.append(self._logprobs.popleft()[2])
        if not text and not ready:
            return []
        tokens, self._tokens = tuple(self._tokens), []
        return [TextDelta(self.choice, text, tuple(ready) or None, tokens=tokens)]

    def _is_due(self, start: int, end: int, *, is_end: bool) -> bool:
        if self.stopped:
            return start < self._shown
        return is_end or end <= self._shown
