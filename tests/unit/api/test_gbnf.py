"""GBNF as Lark: what llguidance's converter makes of a grammar, in a time that no text makes long."""

from __future__ import annotations

import sys
from types import FrameType

import llguidance
import pytest
from llguidance.gbnf_to_lark import any_to_lark

from saiserve.api.gbnf import lark_of


def chain(rules: int) -> str:
    """Rules that each name the next one."""
    return "root ::= r0\n" + "".join(f'r{n} ::= "a" r{n + 1}\n' for n in range(rules)) + f'r{rules} ::= "z"\n'


READABLE = {
    "one rule": 'root ::= "a" | "b"+',
    "names and a loop": 'root ::= item (", " item)*\nitem ::= "[" root "]" | word-like\nword-like ::= [a-z]{2,5}\n',
    "named later": 'root ::= aB\naB ::= c\nc ::= "x" # last\n',
    "comments": '# first\nroot ::= (\n  "a" # one\n  | "b"\n)\n\n\n# end\n',
    "a chain": chain(30),
    "lark": "%llguidance {}\nstart: /a+/\n",
    "lark without its head": '\n\n  start : "a"\n',
}


def lines_run(text: str) -> int:
    """Lines of Python that a conversion runs through."""
    count = 0

    def trace(_frame: FrameType, event: str, _arg: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        lark_of(text)
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("name", READABLE)
def test_the_grammar_says_what_the_converter_says(name: str):
    ours, theirs = (make(READABLE[name]).split() for make in (lark_of, any_to_lark))
    assert ours == theirs
    assert not llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_lark(lark_of(READABLE[name])))


def test_rules_in_an_unlucky_order_are_looked_at_once():
    few, many = (lines_run(chain(n)) for n in (50, 200))
    assert many < 6 * few


def test_blank_lines_are_read_once():
    """Backtracking over them would hold the interpreter for minutes, whatever thread it is in."""
    assert lark_of("\n" * 250_000 + 'root ::= "a"') == lark_of('root ::= "a"')


@pytest.mark.parametrize("text", ['("a"*)*', "([0-9]+)?", "([a-z]+){2}", '("a"? | ("b"+)?){0,3}', '((("a"+)?)*)+'])
def test_a_repetition_of_a_repetition_keeps_its_brackets(text: str):
    grammar = llguidance.LLMatcher.grammar_from_lark(lark_of(f"root ::= {text}"))
    assert not llguidance.LLMatcher.validate_grammar(grammar)


@pytest.mark.parametrize("text", ["root ::= other", 'other ::= "a"', "root ::= (", "root := a", "(" * 5_000])
def test_what_cannot_be_read_is_an_error(text: str):
    with pytest.raises(Exception, match=r"."):
        lark_of(text)
