"""Reasoning apart from the answer: `<think>` and its like, split out of streamed text."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from saiserve.chat.call_pieces import overlap
from saiserve.chat.events import TextDelta
from saiserve.chat.request import ReasoningMarks


def template_begins_reasoning(template: str, opening: str, closing: str) -> bool:
    """Whether a chat template opens the reasoning at the end of a prompt that thinks.

    A pair of marks there is how templates switch thinking off; an opening one without its end leaves it open.
    """
    _, found, end = template.rpartition("add_generation_prompt")
    return bool(found) and end.count(opening) > end.count(closing)


class ReasoningCount:
    """Counts one choice's reasoning tokens up to its bound."""

    def __init__(self, bound: int, marks: ReasoningMarks) -> None:
        self.closing = f"\n{marks.closing}\n\n"
        """What ends the reasoning in the model's stead."""
        self._left = bound
        self._splitter = ReasoningSplitter(marks)

    def is_spent(self, delta: TextDelta) -> bool:
        """Take the next text; True when the bound is reached and the reasoning has not ended."""
        self._splitter.feed(delta.text)
        if not self._splitter.is_inside:
            return False
        self._left -= len(delta.tokens)
        return self._left <= 0


class _State(enum.Enum):
    START = "start"
    INSIDE = "inside"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Split:
    """What a piece of output adds to the reasoning and to the answer."""

    reasoning: str = ""
    text: str = ""


class ReasoningSplitter:
    """Splits one choice's output. Reasoning is looked for at its start only.

    The newlines between marks and text belong to neither.
    """

    def __init__(self, marks: ReasoningMarks) -> None:
        self._opening = marks.opening
        self._closing = marks.closing
        self._state = _State.INSIDE if marks.begun else _State.START
        self._held = ""
        self._fresh = True

    @property
    def is_inside(self) -> bool:
        """Whether the output stands in the reasoning."""
        return self._state is _State.INSIDE

    @property
    def is_undecided(self) -> bool:
        """Whether the output so far may still be the beginning of an opening mark."""
        return self._state is _State.START

    def feed(self, text: str) -> Split:
        """Return what can be told apart so far."""
        self._held += text
        reasoning = ""
        if self._state is _State.START:
            self._begin()
        if self._state is _State.INSIDE:
            reasoning = self._reason()
        return Split(reasoning, self._answer() if self._state is _State.AFTER else "")

    def finish(self) -> Split:
        """Return what was held back."""
        held, self._held = self._held, ""
        return Split(reasoning=held.rstrip("\n")) if self._state is _State.INSIDE else Split(text=held)

    def _begin(self) -> None:
        start = self._held.lstrip()
        if start.startswith(self._opening):
            self._held = start[len(self._opening) :]
            self._state = _State.INSIDE
        elif start and not self._opening.startswith(start):
            self._state = _State.AFTER
            self._fresh = False

    def _reason(self) -> str:
        if self._fresh:
            self._held = self._held.lstrip("\n")
            self._fresh = not self._held
        inside, found, after = self._held.partition(self._closing)
        if found:
            self._held = after
            self._state = _State.AFTER
            self._fresh = True
            return inside.rstrip("\n")
        # A tail of newlines, or of a mark's beginning with newlines before it, waits for what follows.
        keep = overlap(self._held, self._closing)
        ready = self._held[: len(self._held) - keep].rstrip("\n")
        self._held = self._held[len(ready) :]
        return ready

    def _answer(self) -> str:
        if self._fresh:
            self._held = self._held.lstrip("\n")
            self._fresh = not self._held
        text, self._held = self._held, ""
        return text


class AnswerFinder:
    """Finds where one choice's answer begins, and loses nothing: marks and newlines stand before it."""

    def __init__(self, marks: ReasoningMarks) -> None:
        self._splitter = ReasoningSplitter(marks)
        self._undecided = ""

    def feed(self, text: str) -> tuple[str, str]:
        """Return what stands before the answer, then what is of the answer; neither while that is undecided."""
        self._undecided += text
        # Behind the marks the splitter holds nothing back, so the answer is the end of what was fed.
        answer = self._splitter.feed(text).text
        if self._splitter.is_undecided:
            return "", ""
        raw, self._undecided = self._undecided, ""
        start = len(raw) - len(answer)
        return raw[:start], raw[start:]

    def finish(self) -> str:
        """Return what was undecided: it is the answer."""
        raw, self._undecided = self._undecided, ""
        return raw
