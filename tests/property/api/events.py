"""Arbitrary answers as canonical events: every order the contract allows, in every chunking."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from saiserve.api.gathered import GatheredAnswer
from saiserve.chat.events import (
    AnswerEvent,
    ChoiceFinished,
    PromptProgress,
    ReasoningDelta,
    Started,
    StopKind,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from saiserve.engines.messages import TokenLogprob

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SOME_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
OBJECTS = st.dictionaries(
    TEXT, st.one_of(TEXT, st.integers(-9, 9), st.booleans(), st.lists(TEXT, max_size=2)), max_size=3
)


@st.composite
def arguments(draw: st.DrawFn) -> list[str]:
    """Pieces of a call's arguments as the parser gives them: together one JSON object, or nothing at all."""
    text = json.dumps(draw(OBJECTS), ensure_ascii=draw(st.booleans()))
    cuts = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=3))})
    return [text[start:end] for start, end in pairwise(cuts)] if draw(st.integers(0, 4)) else []


@st.composite
def texts(draw: st.DrawFn, choice: int, pieces: list[str], *, logprobs: bool) -> list[AnswerEvent]:
    """Pieces of text; with `logprobs` their tokens, which add up to it, each with the piece that its end is in.

    Tokens end inside characters, a piece may end inside a token, and the last ones may have no text.
    """
    events: list[AnswerEvent] = []
    unsaid = b""
    for at, piece in enumerate(pieces):
        ids = draw(st.lists(st.integers(0, 9), max_size=2).map(tuple))
        unsaid += piece.encode()
        entries: tuple[TokenLogprob, ...] | None = None
        if logprobs and (at == len(pieces) - 1 or draw(st.booleans())):
            entries, unsaid = draw(tokens_of(unsaid)), b""
        events.append(TextDelta(choice, piece, entries, tokens=ids))
    if logprobs and draw(st.integers(0, 4)) == 0:
        events.append(TextDelta(choice, "", (TokenLogprob(9, b"", -1.0),), tokens=(9,)))
    return events


@st.composite
def tokens_of(draw: st.DrawFn, data: bytes) -> tuple[TokenLogprob, ...]:
    """The tokens that these bytes are."""
    cuts = sorted({0, len(data), *draw(st.lists(st.integers(0, len(data)), max_size=2))})
    values = st.floats(-20, 0)
    top = st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=3), values), max_size=2).map(tuple)
    return tuple(
        TokenLogprob(draw(st.integers(0, 9)), data[start:end], draw(values), draw(top)) for start, end in pairwise(cuts)
    )


@st.composite
def choice_events(
    draw: st.DrawFn, choice: int, *, text_only: bool = False, logprobs: bool = False
) -> list[AnswerEvent]:
    """Events of one choice: pieces of text, reasoning and calls in any order, then its end."""
    events: list[AnswerEvent] = []
    calls = 0
    kinds = ["text"] if text_only else ["text", "reasoning", "call"]
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=6)):
        pieces = draw(arguments() if kind == "call" else st.lists(SOME_TEXT, max_size=4))
        if kind == "call":
            events.append(ToolCallStarted(choice, calls, f"call_{choice}_{calls}", draw(NAMES)))
            events += [ToolCallDelta(choice, calls, piece) for piece in pieces]
            calls += 1
        elif kind == "text":
            events += draw(texts(choice, pieces, logprobs=logprobs))
        else:
            events += [ReasoningDelta(choice, piece) for piece in pieces]
    kinds_of_end = [StopKind.LENGTH, StopKind.STOP_STRING, StopKind.TOOL_CALLS if calls else StopKind.END]
    kind_of_end = draw(st.sampled_from(kinds_of_end))
    stop_string = draw(SOME_TEXT) if kind_of_end is StopKind.STOP_STRING else None
    events.append(ChoiceFinished(choice, kind_of_end, stop_string))
    return events


@st.composite
def answers(draw: st.DrawFn, *, choices_max: int = 3, text_only: bool = False) -> tuple[int, list[AnswerEvent]]:
    """Return the number of choices and all events, the choices' interleaved at random; half of them with logprobs."""
    choices = draw(st.integers(1, choices_max))
    logprobs = draw(st.booleans())
    queues = [draw(choice_events(choice, text_only=text_only, logprobs=logprobs)) for choice in range(choices)]
    prompt = draw(st.integers(0, 10_000))
    cached = draw(st.integers(0, prompt))
    events: list[AnswerEvent] = [Started(prompt, cached)]
    done = sorted(draw(st.lists(st.integers(cached, prompt), max_size=3)))
    events += [PromptProgress(processed, prompt, cached) for processed in done]
    while queue := [queue for queue in queues if queue]:
        events.append(draw(st.sampled_from(queue)).pop(0))
    seconds = st.floats(0, 1e6)
    made = draw(st.integers(0, 10_000))
    events.append(Usage(prompt, cached, made, prompt_s=draw(seconds), decode_s=draw(seconds)))
    return choices, events


def gathered(choices: int, events: list[AnswerEvent]) -> GatheredAnswer:
    """Return the answer the events mean, by the product's own reckoning."""
    answer = GatheredAnswer.empty(choices)
    for event in events:
        answer.add(event)
    return answer


def logprobs_in_order(events: list[AnswerEvent], choice: int = 0) -> list[TokenLogprob]:
    """All log-probabilities of a choice."""
    deltas = [event for event in events if isinstance(event, TextDelta) and event.choice == choice]
    return [entry for delta in deltas for entry in delta.logprobs or ()]


def parts_in_order(events: list[AnswerEvent], choice: int = 0) -> list[tuple[str, Any]]:
    """What a choice says, one thing after the other: text and reasoning in one piece, calls with their arguments."""
    parts: list[tuple[str, Any]] = []
    for event in events:
        if getattr(event, "choice", None) != choice:
            continue
        if isinstance(event, ToolCallStarted):
            parts.append(("call", (event.id, event.name, "")))
        elif isinstance(event, ToolCallDelta):
            _, (call_id, name, so_far) = parts.pop()
            parts.append(("call", (call_id, name, so_far + event.arguments)))
        elif isinstance(event, TextDelta | ReasoningDelta) and event.text:
            kind = "text" if isinstance(event, TextDelta) else "reasoning"
            before = parts.pop()[1] if parts and parts[-1][0] == kind else ""
            parts.append((kind, before + event.text))
    return parts


def server_sent(data: bytes) -> list[tuple[str, str]]:
    """Split bytes into (event name, data) by the rules of server-sent events; strict UTF-8, no stray lines."""
    events: list[tuple[str, str]] = []
    name, lines = "", []
    for line in data.decode("utf-8", "strict").split("\n"):
        if not line:
            if lines:
                events.append((name, "\n".join(lines)))
            name, lines = "", []
        elif line.startswith(":"):
            continue
        elif line.startswith("event: "):
            name = line.removeprefix("event: ")
        else:
            assert line.startswith("data: "), line
            lines.append(line.removeprefix("data: "))
    assert not name, "the stream ended inside an event"
    assert not lines, "the stream ended inside an event"
    return events
