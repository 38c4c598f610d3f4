"""The judge of sampled views bites: each promise broken in one way is told."""

from __future__ import annotations

from typing import Any

import pytest
import transitions


def fact(state: str = "ALIVE", incarnation: int = 0, **more: Any) -> dict[str, Any]:
    """What a view tells of one member."""
    words = [1, "aa", incarnation if state == "ALIVE" else 0]
    usual = {"epoch": 1, "instance": "aa", "words": words, "address": "10.0.0.2:1", "metadata": ""}
    return {**usual, "state": state, "incarnation": incarnation, **more}


def judged(*steps: tuple[float, dict[str, Any]], own: str = "ALIVE") -> list[str]:
    """The faults of observer a, which sees b take these steps."""
    me = fact(own, address="10.0.0.1:1")
    return transitions.faults({"a": [(at, {"a": me, "b": b}) for at, b in steps]}, suspicion_min_s=4.0)


def test_a_life_as_the_protocol_promises_it_has_no_faults() -> None:
    assert judged(
        (0, fact()),
        (1, fact("SUSPECT")),
        (2, fact(incarnation=1)),
        (3, fact("SUSPECT", 1)),
        (7, fact("DEAD", 1)),
        (9, fact(incarnation=2)),
        (10, fact("LEFT", 2)),
        (11, fact(epoch=2, instance="bb", words=[2, "bb", 0])),
    ) == []  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([(0, fact("SUSPECT")), (1, fact())], "fell from"),
        ([(0, fact("SUSPECT")), (5, fact("DEAD")), (6, fact())], "fell from"),
        ([(0, fact(epoch=2)), (1, fact(epoch=1))], "fell from"),
        ([(0, fact("LEFT")), (1, fact("SUSPECT", 1)), (6, fact("DEAD", 1))], "left and was reported as failed"),
        ([(0, fact()), (1, fact(metadata="ff"))], "has {"),
        ([(0, fact()), (1, fact("DEAD"))], "without ever being suspected"),
        ([(0, fact("SUSPECT")), (2, fact("DEAD"))], "died 2.00 s after"),
    ],
)
def test_a_broken_promise_is_told(steps: list[tuple[float, dict[str, Any]]], words: str) -> None:
    (told,) = judged(*steps)
    assert words in told


def test_an_observer_that_is_not_alive_to_itself_is_told() -> None:
    assert "SUSPECT to itself" in judged((0, fact()), own="SUSPECT")[0]


def test_sampled_steps_are_counted() -> None:
    samples = [(0.0, {"b": fact()}), (1.0, {"b": fact("SUSPECT")}), (2.0, {"b": fact(incarnation=1)})]
    assert transitions.count({"a": samples}) == {"ALIVE → SUSPECT": 1, "SUSPECT → ALIVE": 1}
