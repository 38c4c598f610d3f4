"""Calls as the families of models write them, and what only looks like one."""

from __future__ import annotations

import json

import pytest

from saiserve.chat.call_pieces import CallArguments, CallBegun, ParsedCall
from saiserve.chat.request import Tool
from saiserve.chat.tool_formats import FORMATS, format_of_template
from saiserve.chat.tool_parser import ToolCallParser

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
    (
        "qwen_xml",
        f"<tool_call>\n<function=get_weather>\n{XML_CITY}\n{XML_CITY.replace('Paris', 'Rome')}\n</function>\n</tool_call>",
        [PARIS],
    ),
    (
        "qwen_xml",
        '<tool_call><function=get_weather>\n<parameter=city>\na\n"b" <b> é\n\n</parameter>\n</tool_call> ok',
        [("get_weather", {"city": 'a\n"b" <b> é\n'}), " ok"],
    ),
    ("qwen_xml", "<tool_call><function=get_weather><parameter=city>\nPar", [("get_weather", {"city": "Par"})]),
    ("qwen_xml", "<tool_call><function=get_weather><parameter=days>\n3", [("get_weather", {})]),
    (
        "qwen_xml",
        "<tool_call><function=get_weather><parameter=other>\n[1, 2]\n</parameter><parameter=days>many</parameter></function></tool_call>",
        [("get_weather", {"other": [1, 2], "days": "many"})],
    ),
    ("qwen_xml", "<tool_call><function=other></function></tool_call>\nDone.", [("other", {}), "Done."]),
    ("llama3", '{"name": "get_weather", "parameters": {"city": "Paris"}}', [PARIS]),
    ("llama3", '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}', [PARIS]),
    ("llama3", '{"name": "get_weather", "parameters": {"city": "Paris"}, "type": "function"}', [PARIS]),
    ("llama3", '{"name": "get_weather", "parameters": {"city": "Paris"}} So be it.', [PARIS, "So be it."]),
    ("llama3", '{"name": "get_weather", "parameters": {"city": "Par', [("get_weather", {"city": "Par"})]),
    ("llama3", '{"name": "now", "parameters": {}}{"parameters": {}, "name": "now"}', [NOW, NOW]),
    ("llama3", '{"name": "now", "parameters": {}}; {"answer": 1}', [NOW, '{"answer": 1}']),
    ("llama3", '{"parameters": {"city": "Paris"}, "name": "get_weather"}', [PARIS]),
    ("llama3", '{"name": "now", "parameters": {"x": NaN}} and more', [("now", {"x": None})]),
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
    ("mistral", "a\n[TOOL_CALLS]b c {\n[TOOL_CALLS]now{}", ["a\n[TOOL_CALLS]b c {", NOW]),
    ("hermes", "a\n\n<tool_call>b</tool_call>", ["a\n\n<tool_call>b</tool_call>"]),
    ("hermes", "a\n<tool_call>b", ["a\n<tool_call>b"]),
]


@pytest.mark.parametrize(("name", "text", "expected"), CASES)
@pytest.mark.parametrize("cut", [None, 1, 2, 7])
def test_calls_are_found_however_the_text_is_cut(name, text, expected, cut):
    assert parse(name, text, cut=cut) == ([text] if expected is None else expected)


GROWING = [
    ("qwen_xml", "<tool_call>\n<function=get_weather>\n<parameter=city>\n{}\n</parameter>\n</function>\n</tool_call>"),
    ("llama3", '{{"name": "get_weather", "parameters": {{"city": "{}"}}}}'),
    ("json", '```json\n[{{"name": "get_weather", "arguments": {{"city": "{}"}}}}]\n```'),
    ("hermes", '<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{}"}}}}\n</tool_call>'),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{{"city": "{}"}}'),
]


@pytest.mark.parametrize(("name", "form"), GROWING, ids=[name for name, _ in GROWING])
def test_long_arguments_go_out_as_they_grow(name: str, form: str) -> None:
    """After each piece at most a mark's length is held, and what was sent is the beginning of the arguments."""
    city = "a long story " * 40
    parser = ToolCallParser(FORMATS[name], TOOLS)
    head, tail = form.format("#").split("#")
    sent = "".join(piece.text for piece in parser.feed(head) if isinstance(piece, CallArguments))
    for said in range(0, len(city), 13):
        pieces = parser.feed(city[said : said + 13])
        assert all(isinstance(piece, CallArguments) for piece in pieces)
        sent += "".join(piece.text for piece in pieces)
        assert json.dumps({"city": city}).startswith(sent)
        assert len(sent) >= said
    rest = [*parser.feed(tail), *parser.finish()]
    sent += "".join(piece.text for piece in rest if isinstance(piece, CallArguments))
    assert json.loads(sent) == {"city": city}


@pytest.mark.parametrize(("name", "form"), GROWING, ids=[name for name, _ in GROWING])
def test_arguments_cut_by_the_limit_stay_open(name: str, form: str) -> None:
    parser = ToolCallParser(FORMATS[name], TOOLS)
    pieces = [*parser.feed(form.format("#").split("#")[0] + "Par"), *parser.finish(is_cut=True)]
    assert "".join(piece.text for piece in pieces if isinstance(piece, CallArguments)) == '{"city": "Par'


@pytest.mark.parametrize("behind", range(len("}\n</tool_call>")))
def test_a_limit_that_falls_into_the_end_of_a_call_leaves_none_of_it_as_text(behind: int) -> None:
    text = '<tool_call>\n{"name": "now", "arguments": {}' + "}\n</tool_call>"[:behind]
    parser = ToolCallParser(FORMATS["hermes"], TOOLS)
    pieces = [*parser.feed(text), *parser.finish(is_cut=True)]
    assert not [piece for piece in pieces if isinstance(piece, str)]


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
