"""`tool_choice` as grammar: what llguidance accepts under it, and that the parser finds what it accepts."""

from __future__ import annotations

import json

import llguidance
import pytest

from saiserve.chat.call_pieces import CallBegun, ParsedCall, Piece
from saiserve.chat.request import Tool, ToolChoice, ToolChoiceMode
from saiserve.chat.tool_formats import FORMATS
from saiserve.chat.tool_grammar import tool_constraint
from saiserve.chat.tool_parser import ToolCallParser
from saiserve.engines.llamacpp.constraint import own_rules
from saiserve.engines.messages import Constraint

REFERRING = {
    "type": "object",
    "properties": {"place": {"$ref": "#/$defs/place"}},
    "required": ["place"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
}
TOOLS = [Tool("go", "", REFERRING), Tool("now", "", {})]
REQUIRED = ToolChoice(ToolChoiceMode.REQUIRED)

SAID = {
    "hermes": ('<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>', "\n"),
    "qwen_xml": ('<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>', "\n"),
    "llama3": ('{"name": "%s", "parameters": %s}', "; "),
    "json": ('{"name": "%s", "arguments": %s}', "; "),
}


def accepts(constraint: Constraint, text: str) -> bool:
    assert constraint.kind == "lark"
    tokenizer = llguidance.LLTokenizer("byte")
    grammar = constraint.body + own_rules(constraint.markers, {})
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def names(pieces: list[Piece]) -> list[str]:
    return [piece.name for piece in pieces if isinstance(piece, (ParsedCall, CallBegun))]


@pytest.mark.parametrize("name", list(SAID))
def test_required_means_calls_of_known_tools_with_fitting_arguments_and_nothing_else(name):
    call, separator = SAID[name]
    grammar = tool_constraint(FORMATS[name], TOOLS, REQUIRED)
    go, now = call % ("go", '{"place": {"x": 1}}'), call % ("now", "{}")
    assert accepts(grammar, go)
    assert accepts(grammar, now)
    assert accepts(grammar, go + separator + now)
    assert not accepts(grammar, "Hello")
    assert not accepts(grammar, call % ("other", "{}"))
    assert not accepts(grammar, call % ("go", '{"place": {"x": "one"}}'))
    assert not accepts(grammar, call % ("go", "{}"))
    parser = ToolCallParser(FORMATS[name], TOOLS)
    parsed = parser.feed(go + separator + now) + parser.finish()
    assert names(parsed) == ["go", "now"]


def test_mistral_writes_an_array():
    grammar = tool_constraint(FORMATS["mistral"], TOOLS, REQUIRED)
    text = '[TOOL_CALLS][{"name": "go", "arguments": {"place": {"x": 1}}}, {"name": "now", "arguments": {}}]'
    assert accepts(grammar, text)
    assert names(ToolCallParser(FORMATS["mistral"], TOOLS).feed(text)) == ["go", "now"]


def test_a_named_tool_is_the_only_one_and_parallel_false_means_one_call():
    call, separator = SAID["hermes"]
    now = call % ("now", "{}")
    grammar = tool_constraint(FORMATS["hermes"], TOOLS, ToolChoice(ToolChoiceMode.NAMED, "now", parallel=False))
    assert accepts(grammar, now)
    assert not accepts(grammar, call % ("go", '{"place": {"x": 1}}'))
    assert not accepts(grammar, now + separator + now)


def test_auto_with_a_schema_allows_a_call_or_a_fitting_answer():
    answer = Constraint("json_schema", json.dumps({"type": "object", "required": ["a"]}))
    grammar = tool_constraint(FORMATS["hermes"], TOOLS, ToolChoice(), answer)
    assert accepts(grammar, SAID["hermes"][0] % ("now", "{}"))
    assert accepts(grammar, '{"a": 1}')
    assert not accepts(grammar, '{"b": 1}')


def test_auto_alone_and_none_leave_the_answer_as_the_client_wants_it():
    answer = Constraint("json_object")
    assert tool_constraint(FORMATS["hermes"], TOOLS, ToolChoice()) is None
    assert tool_constraint(FORMATS["hermes"], TOOLS, ToolChoice(ToolChoiceMode.NONE), answer) is answer
    assert tool_constraint(FORMATS["hermes"], (), ToolChoice(), answer) is answer


def test_auto_holds_a_call_to_a_strict_tool_once_it_is_begun_and_leaves_text_free():
    call, separator = SAID["hermes"]
    tools = [Tool("go", "", REFERRING, strict=True), Tool("now", "", {"type": "object", "required": ["x"]})]
    grammar = tool_constraint(FORMATS["hermes"], tools, ToolChoice())
    go, now = call % ("go", '{"place": {"x": 1}}'), call % ("now", "{}")
    for text in ("", "Hello < there", "Hm.\n" + go, go + separator + now, f"a{go}b{now}c"):
        assert accepts(grammar, text), text
    for text in (
        "<tool_call>",
        "x<tool_call>y",
        call % ("go", "{}"),
        call % ("other", "{}"),
        "Hm." + now + "<tool_call>",
    ):
        assert not accepts(grammar, text), text
    one = tool_constraint(FORMATS["hermes"], tools, ToolChoice(parallel=False))
    assert accepts(one, "Hm.\n" + go)
    assert not accepts(one, go + separator + go)


def test_a_free_form_tool_is_held_to_its_lark_grammar_and_its_text_comes_back():
    grammar = Constraint("lark", 'start: "*** Begin" LF line+ "*** End"\nline: "+" /[^\\n]*/ LF\n%import common.LF')
    patch = Tool("apply_patch", "", {"type": "object", "properties": {"input": {"type": "string"}}}, grammar=grammar)
    held = tool_constraint(FORMATS["hermes"], [patch, Tool("now")], ToolChoice())
    text = '*** Begin\n+a "quoted" {line}\n+\n*** End'
    call = f"<tool_call>\n<function=apply_patch>\n<parameter=input>\n{text}\n</parameter>\n</function>\n</tool_call>"
    assert accepts(held, "Sure.\n" + call)
    assert not accepts(held, call.replace("+a", "-a"))
    assert not accepts(held, SAID["hermes"][0] % ("apply_patch", '{"input": "x"}'))
    begun, *arguments = ToolCallParser(FORMATS["hermes"], [patch]).feed(call)
    assert begun == CallBegun("apply_patch")
    assert json.loads("".join(piece.text for piece in arguments)) == {"input": text}


def test_a_free_form_tool_is_held_to_its_regex_in_any_format():
    digits = Tool("dial", "", {"type": "object", "required": ["input"]}, grammar=Constraint("regex", "[0-9]{3}"))
    for name, (call, _) in SAID.items():
        held = tool_constraint(FORMATS[name], [digits], REQUIRED)
        assert accepts(held, call % ("dial", '{"input": "112"}'))
        assert not accepts(held, call % ("dial", '{"input": "11a"}'))
