"""`logprobs` are those of the tokens that the content is made of, whatever else the output holds, however it is cut."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saiserve.chat.answer import ChoiceText
from saiserve.chat.events import AnswerEvent, TextDelta
from saiserve.chat.parsed import AnswerParser
from saiserve.chat.reasoning import ReasoningSplitter
from saiserve.chat.request import ReasoningMarks, Tool
from saiserve.chat.tool_formats import FORMATS
from saiserve.chat.tool_parser import ToolCallParser
from saiserve.engines.messages import FinishReason, TokenLogprob, Tokens
from tests.property.api.test_parsing import OUTPUT

TOOLS = [Tool("f", "", {"properties": {"x": {"type": "string"}}}), Tool("g")]
FORMAT_NAMES = ["", *FORMATS]
"""The empty one: no tools."""


def parser_of(name: str, *, reasons: bool, parallel: bool) -> AnswerParser:
    marks = ReasoningMarks("<think>", "</think>", begun=False)
    return AnswerParser(
        1,
        splitter=partial(ReasoningSplitter, marks) if reasons else None,
        parser=partial(ToolCallParser, FORMATS[name], TOOLS, parallel=parallel) if name else None,
        tools=TOOLS,
        new_call_id=lambda: "c",
    )


def content(pieces: list[str], parser: AnswerParser, reason: FinishReason) -> tuple[str, list[int]]:
    """The text of an answer that comes in these tokens, and which of them are told as its own."""
    choice = ChoiceText(0)
    events: list[AnswerEvent] = []
    for number, piece in enumerate(pieces):
        data = piece.encode()
        events += choice.tokens(Tokens("a", (number,), data, (TokenLogprob(number, data, -1.0),)))
    events += choice.finish(reason)
    texts = [made for event in events for made in parser(event) if isinstance(made, TextDelta)]
    assert all(delta.text for delta in texts)
    numbers = [entry.token for delta in texts for entry in delta.logprobs or ()]
    return "".join(delta.text for delta in texts), numbers


@given(
    text=OUTPUT,
    places=st.lists(st.integers(0, 300), max_size=12),
    name=st.sampled_from(FORMAT_NAMES),
    reasons=st.booleans(),
    parallel=st.booleans(),
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
def test_the_tokens_told_are_those_with_a_character_in_the_content(
    text: str, places: list[int], name: str, reasons: bool, parallel: bool, reason: FinishReason
) -> None:
    one_by_one, characters = content(list(text), parser_of(name, reasons=reasons, parallel=parallel), reason)
    assert "".join(text[at] for at in characters) == one_by_one, "tokens of one character add up to the content"
    cuts = sorted({0, len(text), *(place for place in places if place < len(text))})
    pieces = [text[start:end] for start, end in itertools.pairwise(cuts)]
    found, told = content(pieces, parser_of(name, reasons=reasons, parallel=parallel), reason)
    assert found == one_by_one
    assert told == sorted(set(told))
    ends = list(itertools.accumulate(map(len, pieces)))
    assert told == sorted({next(i for i, end in enumerate(ends) if at < end) for at in characters})


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        (["<think>", "hm", "</think>", "\n\n", "Hi", "!"], [4, 5]),
        (["<think>", "hm"], []),
        (["Hi", "\n", "<tool_call>", '\n{"name": "f", "arguments": {', '"x": "Hi"', "}}\n", "</tool_call>"], [0]),
        (["Hi ", "<tool", "_box>", "!"], [0, 1, 2, 3]),
        (["<tool_call>", "Hi", "</tool_call>"], [0, 1, 2]),
        (["<think>", "Hi", "</think>", "Hi", "<tool_call>", '{"name": "g"}', "</tool_call>", "\n", "Hi"], [3, 8]),
        (["<th", "ink>th</think>th"], [1]),
        (["<tool_call>", '{"name": "g"}', "</tool_call>g"], [2]),
    ],
)
def test_marks_reasoning_and_calls_have_none(pieces: list[str], told: list[int]) -> None:
    assert content(pieces, parser_of("hermes", reasons=True, parallel=True), FinishReason.STOP)[1] == told
