"""A constraint that becomes too much work in the middle of an answer is the client's to mend, and says how."""

from __future__ import annotations

from itertools import count
from typing import Any

import llguidance
import pytest

from saiserve.engines.llamacpp.constraint import LIMITS, ConstraintBroken, Matcher
from saiserve.engines.messages import Constraint, Failed, FailureKind, Sampling, Tokens
from tests.unit.llamacpp.desk import Desk

AMBIGUOUS = Constraint("lark", 'start: "x" s\ns: s s | s s s | "a" | ""')


def limited(desk: Desk, **limits: int) -> None:
    desk.worker._intake._compiler._limits = llguidance.LLParserLimits(**{**LIMITS, **limits})


def failure(desk: Desk, constraint: Constraint, **options: Any) -> Failed:
    asking = desk.ask(constraint=constraint, **{"max_tokens": 200, **options})
    desk.finish(asking)
    said = desk.said[asking]
    assert any(isinstance(one, Tokens) for one in said), "it had begun"
    assert isinstance(said[-1], Failed), said[-1]
    return said[-1]


def test_a_limit_hit_in_the_middle_is_the_requests_own_fault(desk: Desk) -> None:
    limited(desk, step_max_items=60)
    failed = failure(desk, AMBIGUOUS, sampling=Sampling(seed=3, temperature=1.0, ignore_eos=True))
    assert failed.kind is FailureKind.BAD_REQUEST
    assert "step_max_items 50000" in failed.detail
    assert "unambiguous" in failed.detail
    assert "<" not in failed.detail
    assert desk.answer(max_tokens=3), "the next one is served"


def test_too_many_readings_of_one_place_are_so_too(desk: Desk) -> None:
    limited(desk, max_items_in_row=20)
    failed = failure(desk, AMBIGUOUS, sampling=Sampling(seed=3, temperature=1.0, ignore_eos=True))
    assert failed.kind is FailureKind.BAD_REQUEST
    assert "Current row has" in failed.detail


class Ended:
    """A matcher of llguidance's that has given up."""

    def __init__(self, reason: str, words: str) -> None:
        self.stop_reason, self.get_error = lambda: reason, lambda: words

    def consume_token(self, token: int) -> bool:
        return False

    def is_error(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("reason", "words", "is_own", "told"),
    [
        ("InternalError", "lexer error: too many expressions constructed", True, "step_lexer_fuel 200000"),
        ("LexerTooComplex", "", True, "shorten what repeats"),
        ("ParserTooComplex", "", True, "bound what repeats"),
        ("InternalError", "Parser Error: Current row has 15600 items; max is 5000", True, "max_items_in_row 5000"),
        ("NoExtension", "nothing fits", True, "nothing fits"),
        ("InternalError", "panic", False, "panic"),
    ],
)
def test_whose_fault_an_end_is_shows_in_its_words(reason: str, words: str, is_own: bool, told: str) -> None:
    ended: Any = Ended(reason, words)
    with pytest.raises(ConstraintBroken, match=told) as broken:
        Matcher(ended, ended, 8).accept(1)
    assert broken.value.is_own is is_own


def test_one_that_leaves_no_token_with_the_other_wishes_is_so_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    forbidden, asked = Matcher.forbidden, count()
    monkeypatch.setattr(Matcher, "allows", lambda _self, _token: False)
    # The first is asked for while the constraint is compiled, when no other wish is known.
    monkeypatch.setattr(Matcher, "forbidden", lambda self: forbidden(self) | (next(asked) > 0))
    asking = desk.ask(constraint=Constraint("lark", 'start: "x" "y"'), max_tokens=3)
    desk.finish(asking)
    failed = desk.said[asking][-1]
    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.BAD_REQUEST
    assert "ignore_eos" in failed.detail
