"""llama.cpp's grammars (GBNF) as Lark, in time that grows with their length and no faster.

llguidance's own converter looks through all rules again for each that stands before one it names, and at each blank line
through all that follow: minutes for what fits into one field, in which nothing else of the node would run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llguidance.gbnf_to_lark import ASTNode, RuleNode

LARK_LINE: Final = re.compile(r"%llguidance\b|start[ \t]*:")
"""Begins a line of a grammar that is Lark already."""


def lark_of(text: str) -> str:
    """A grammar in Lark; one that is Lark stays as it is.

    Raises:
        Exception: it cannot be read; the converter has no class of its own for that.
    """
    if any(LARK_LINE.match(line.lstrip()) for line in text.splitlines()):
        return text
    from llguidance.gbnf_to_lark import GrammarParser, resolve  # a node that is asked for no grammars needs none

    rules = GrammarParser().parse(text)
    listed = tuple(rules.values())
    resolve(_named_first(rules))
    for rule in listed:
        _bracket_repetitions(rule)
    return "%llguidance {}\n\n" + "".join(f"{rule}\n" for rule in listed)


def _named_first(rules: dict[str, RuleNode]) -> dict[str, RuleNode]:
    """The rules, each behind those it names: then the converter finds in one pass which are terminals."""
    ordered: dict[str, RuleNode] = {}
    entered: set[str] = set()
    for first, rule in rules.items():
        path = [(first, _names_in(rule))] if first not in entered else []
        entered.add(first)
        while path:
            name, others = path[-1]
            other = next((one for one in others if one in rules and one not in entered), None)
            if other is None:
                ordered[name] = rules[name]
                path.pop()
            else:
                entered.add(other)
                path.append((other, _names_in(rules[other])))
    return ordered


def _bracket_repetitions(rule: ASTNode) -> None:
    """Keep the brackets of a repetition that is repeated, which the converter leaves out: `(/a/+)?` is no `/a/+?`."""
    from llguidance.gbnf_to_lark import RepetitionNode, SequenceNode

    for node in _inside(rule):
        if isinstance(node, RepetitionNode) and isinstance(node.node, RepetitionNode):
            node.node = SequenceNode([node.node])


def _names_in(rule: ASTNode) -> Iterator[str]:
    """Names of the rules that one rule names."""
    from llguidance.gbnf_to_lark import RuleRefNode

    return (node.name for node in _inside(rule) if isinstance(node, RuleRefNode))


def _inside(node: ASTNode) -> Iterator[ASTNode]:
    """A node and all below it."""
    nodes = [node]
    while nodes:
        one = nodes.pop()
        yield one
        nodes += one.children()
