"""Parsing does not depend on how output was cut into pieces, and loses nothing."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from saiserve.chat.call_pieces import CallArguments, CallBegun, ParsedCall
from saiserve.chat.reasoning import ReasoningSplitter
from saiserve.chat.request import ReasoningMarks, Tool
from saiserve.chat.tool_formats import FORMATS
from saiserve.chat.tool_parser import ToolCallParser

TOOLS = [Tool("f", "", {"properties": {"x": {"type": "string"}}}), Tool("g")]
FRAGMENTS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<think>", "</think>", "\n", " ", "{", "}", "[", "]", '"', "\\",
        '{"name": "f", "arguments": {"x": 1}}', '{"name": "f", "parameters": {}}', "f[ARGS]{}", "```json\n", "```",
        "<function=f>", "<parameter=x>", '{"name": "f", "parameters": {', '{"type": "function", ', "}}", "</parameter>", "</function>", "<|python_tag|>", "hello", "é", "<", "</",
        "<tool", "<thi", "; ", ",",
    ]
)  # fmt: skip
OUTPUT = st.lists(FRAGMENTS, max_size=12).map("".join)
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["f", "g"]),
        st.dictionaries(st.text(max_size=4), st.text(max_size=8) | st.integers(), max_size=3),
    ),
    max_size=3,
)


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


def parsed(name: str, pieces: list[str], *, parallel: bool = True) -> list[str | ParsedCall]:
    parser = ToolCallParser(FORMATS[name], TOOLS, parallel=parallel)
    found = [item for piece in pieces for item in parser.feed(piece)] + parser.finish()
    joined: list[str | ParsedCall] = []
    for item in found:
        if isinstance(item, CallBegun):
            joined.append(ParsedCall(item.name, ""))
        elif isinstance(item, CallArguments):
            assert isinstance(joined[-1], ParsedCall)
            joined[-1] = ParsedCall(joined[-1].name, joined[-1].arguments + item.text)
        elif isinstance(item, str) and joined and isinstance(joined[-1], str):
            joined[-1] += item
        else:
            joined.append(item)
    return joined


@given(st.sampled_from(list(FORMATS)), OUTPUT, st.lists(st.integers(0, 500), max_size=8), st.booleans())
def test_calls_and_text_are_the_same_however_output_is_cut(name, text, places, parallel):
    whole = parsed(name, [text], parallel=parallel)
    assert parsed(name, cut(text, places), parallel=parallel) == whole
    for item in whole:
        if isinstance(item, ParsedCall):
            assert isinstance(json.loads(item.arguments), dict)


@given(st.sampled_from(list(FORMATS)), OUTPUT)
def test_text_without_calls_comes_out_whole(name, text):
    found = parsed(name, [text])
    if not any(isinstance(item, ParsedCall) for item in found):
        assert "".join(found) == text


@given(CALLS, st.lists(st.integers(0, 500), max_size=8))
def test_calls_written_in_a_format_are_read_back(calls, places):
    texts = {
        "hermes": "\n".join(
            f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
            for name, arguments in calls
        ),
        "llama3": "; ".join(json.dumps({"name": name, "parameters": arguments}) for name, arguments in calls),
        "mistral": "[TOOL_CALLS]" + json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])
        if calls
        else "",
        "json": json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls]) if calls else "",
    }
    for name, text in texts.items():
        found = parsed(name, cut(text, places))
        assert [(call.name, json.loads(call.arguments)) for call in found] == calls, name


@given(OUTPUT, st.lists(st.integers(0, 500), max_size=8), st.booleans())
def test_reasoning_is_split_the_same_however_output_is_cut(text, places, begun):
    def split(pieces):
        splitter = ReasoningSplitter(ReasoningMarks("<think>", "</think>", begun))
        splits = [splitter.feed(piece) for piece in pieces] + [splitter.finish()]
        return "".join(s.reasoning for s in splits), "".join(s.text for s in splits)

    assert split(cut(text, places)) == split([text])


def test_reasoning_comes_first_and_its_newlines_belong_to_nobody():
    splitter = ReasoningSplitter(ReasoningMarks("<think>", "</think>", begun=False))
    first = splitter.feed("<think>\nwhy\n</think>\n\nbecause\n")
    assert (first.reasoning, first.text) == ("why", "because\n")
    assert splitter.feed("<think>x").text == "<think>x"
