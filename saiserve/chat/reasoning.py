"""Reasoning apart from the answer: `<think>` and its like, split out of streamed text."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from saiserve.chat.call_pieces import overlap
from saiserve.chat.events import TextDelta
from saiserve.chat.request import ReasoningBound


def template_begins_reasoning(template: str, opening: str, closing: str) -> bool:
    """Whether a chat template opens the reasoning at the end of a prompt that thinks.

    A pair of marks there is how templates switch thinking off; an opening one without its end leaves it open.
    """
    _, found, end = template.rpartition("add_generation_prompt")
    return bool(found) and end.count(opening) > end.count(closing)


class ReasoningCount:
    """Counts one choice's reasoning tokens up to its bound."""

    def __init__(self, bound: ReasoningBound) -> None:
        self.closing = f"\n{bound.closing}\n\n"
        """What ends the reasoning in the model's stead."""
        self._left = bound.tokens
        self._splitter = ReasoningSplitter(bound.opening, bound.closing, begun=bound.begun)

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
    """Splits one choice's output. Reasoning is looked for at its start only; `begun`: the prompt already opened it.

    The newlines between marks and text belong to neither.
    """

    def __init__(self, opening: str, closing: str, *, begun: bool = False) -> None:
        self._opening = opening
        self._closing = closing
        self._state = _State.INSIDE if begun else _State.START
        self._held = ""
        self._fresh = True

    @property
    def is_inside(self) -> bool:
        """Whether the output stands in the reasoning."""
        return self._state is _State.INSIDE

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
