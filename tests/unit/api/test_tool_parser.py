"""Calls as the families of models write them, and what only looks like one."""

from __future__ import annotations

import json

import pytest

from saiserve.chat.request import Tool
from saiserve.chat.tool_formats import FORMATS, format_of_template
from saiserve.chat.tool_parser import CallArguments, CallBegun, ToolCallParser
from saiserve.chat.whole_calls import ParsedCall

TOOLS = [
    Tool(
        "get_weather", "", {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    ),
    Tool("now"),
]


def parse(name: str, text: str, *, parallel: bool = True, cut: int | None = None) -> list:
    parser = ToolCallParser(FORMATS[name], TOOLS, parallel=parallel)
    pieces = []
    for start in range(0, len(text), cut or max(1, len(text))):
        pieces += parser.feed(text[start : start + (cut or len(text))])
    pieces += parser.finish()
    joined: list = []
    for piece in pieces:
        if isinstance(piece, CallBegun):
            joined.append(ParsedCall(piece.name, ""))
        elif isinstance(piece, CallArguments):
            joined[-1] = ParsedCall(joined[-1].name, joined[-1].arguments + piece.text)
        elif isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    return [(p.name, json.loads(p.arguments)) if isinstance(p, ParsedCall) else p for p in joined]


PARIS = ("get_weather", {"city": "Paris"})
NOW = ("now", {})

PARIS_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
XML_CITY = "<parameter=city>\nParis\n</parameter>"

CASES = [
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', [PARIS]),
    (
        "hermes",
        f'Let me see.\n\n{PARIS_CALL}\n<tool_call>{{"name":"now"}}</tool_call>\nDone.',
        ["Let me see.", PARIS, NOW, "Done."],
    ),
    (
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "a</tool_call>b \\" c"}}</tool_call>',
        [("get_weather", {"city": 'a</tool_call>b " c'})],
    ),
    ("hermes", '<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', [NOW]),
    ("hermes", "<tool_call>not json</tool_call> x", ["<tool_call>not json</tool_call> x"]),
    ("hermes", '<tool_call>{"name": "now", "arg', ['<tool_call>{"name": "now", "arg']),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}}', [NOW]),
    ("hermes", '{"name": "now", "arguments": {}}', ['{"name": "now", "arguments": {}}']),
    ("hermes", "a <tool_cal", ["a <tool_cal"]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"x": NaN}}</tool_call>', [("now", {"x": None})]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"x": [1, {"y": "z', [("now", {"x": [1, {"y": "z"}]})]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"x": "a\nb\\d"}}</tool_call>', [("now", {"x": "a\nb\\d"})]),
    ("hermes", '<tool_call>{"arguments": {}, "name": "now"}</tool_call>', [NOW]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"x": "\\ud800"}}</tool_call>', [("now", {"x": "\ud800"})]),
    (
        "qwen_xml",
        f"<tool_call>\n<function=get_weather>\n{XML_CITY}\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        [("get_weather", {"city": "Paris", "days": 3})],
    ),
    ("qwen_xml", "<tool_call>\n<function=now>\n</function>\n</tool_call>", [NOW]),
    (
        "qwen_xml",
        "<tool_call><function=get_weather><parameter=city>\n7\n</parameter></function></tool_call>",
        [("get_weather", {"city": "7"})],
    ),
    ("llama3", '{"name": "get_weather", "parameters": {"city": "Paris"}}', [PARIS]),
    ("llama3", '<|python_tag|>{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}', [NOW, NOW]),
    ("llama3", '{"name": "unknown", "parameters": {}}', ['{"name": "unknown", "parameters": {}}']),
    ("llama3", '{"answer": 42}', ['{"answer": 42}']),
    ("llama3", "Plain text.", ["Plain text."]),
    ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now"}]', [PARIS, NOW]),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]now{}', [PARIS, NOW]),
    ("mistral", "[TOOL_CALLS] is what I would say {", ["[TOOL_CALLS] is what I would say {"]),
    ("json", '```json\n{"name": "get_weather", "parameters": {"city": "Paris"}}\n```', [PARIS]),
    ("json", '```tool_code\n[{"name": "now", "arguments": {}}]\n```', [NOW]),
    ("json", "```python\nprint(1)\n```", ["```python\nprint(1)\n```"]),
    ("json", '{"function": {"name": "now", "arguments": "{}"}}', [NOW]),
    ("json", "[1, 2]", ["[1, 2]"]),
]


@pytest.mark.parametrize(("name", "text", "expected"), CASES)
@pytest.mark.parametrize("cut", [None, 1, 2, 7])
def test_calls_are_found_however_the_text_is_cut(name, text, expected, cut):
    assert parse(name, text, cut=cut) == ([text] if expected is None else expected)


def test_without_parallel_calls_only_the_first_counts():
    text = '<tool_call>{"name": "now"}</tool_call><tool_call>{"name": "now"}</tool_call>and more'
    assert parse("hermes", text, parallel=False, cut=3) == [NOW]


def test_a_name_that_is_no_tool_goes_to_the_client_when_it_is_marked_as_a_call():
    assert parse("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>') == [("other", {})]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{% if tools %}<tool_call><function=x>{% endif %}", "qwen_xml"),
        ("{{ tools }} [TOOL_CALLS]", "mistral"),
        ("{{ tools }} ipython", "llama3"),
        ("{{ tools }}", "json"),
        ("{{ messages }}", ""),
        ("", ""),
    ],
)
def test_a_template_tells_its_format(template, name):
    assert format_of_template(template) == name
