"""Stop strings that begin and end inside tokens: nothing of them leaks, nothing else is lost, on every route."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from acceptance.cluster import SMOL
from acceptance.nodes import Node
from saiserve import limits
from tests.e2e.dialects.places import CHAT, Place
from tests.e2e.dialects.reading import MESSAGES, assert_refused, strict_json, told

pytestmark = pytest.mark.slow

COMPLETIONS = "/v1/completions"
PATHS = [CHAT, COMPLETIONS, MESSAGES]
TOKENS = 40
SUBSTRINGS = 20
QUESTION = "Say it again and again."
SENTENCE = (
    "The gardener remembered yesterday's thunderstorm while transplanting strawberries beside the greenhouse, whispering "
    "marvellous instructions concerning watering, temperature, fertiliser and harvesting towards the bewildered "
    "apprentice, whose notebook overflowed with illegible handwriting and watercolour drawings of mushrooms."
)
"""Longer than an answer here, so that no answer comes to its end, where a model may also stop."""
BEGUN = f"{SENTENCE} {SENTENCE} {SENTENCE} {SENTENCE} The gardener"
"""What is to be continued leaves no doubt: rounding, which differs from batch to batch, never changes the greedy token."""


def body(path: str, **extra: Any) -> dict[str, Any]:
    begun = {"role": "assistant", "content": BEGUN}
    said: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}, begun]}
    if path == COMPLETIONS:
        said = {"prompt": f"{QUESTION} {BEGUN}"}
    return {"model": SMOL, "max_tokens": TOKENS, "temperature": 0, **said, **extra}


def with_stop(path: str, stops: list[str], *, stream: bool) -> dict[str, Any]:
    if path == MESSAGES:
        return body(path, stop_sequences=stops, stream=stream)
    usage = {"stream_options": {"include_usage": True}} if stream else {}
    return body(path, stop=stops, stream=stream, **usage)


def pieces_of(place: Place, path: str) -> list[str]:
    """The greedy answer, token by token."""
    if path == COMPLETIONS:
        return list(strict_json(place.post(path, body(path, logprobs=1)).content)["choices"][0]["logprobs"]["tokens"])
    reply = strict_json(place.post(CHAT, body(CHAT, logprobs=True)).content)
    return [entry["token"] for entry in reply["choices"][0]["logprobs"]["content"]]


def inside_tokens(pieces: list[str], count: int) -> list[str]:
    """Substrings of 5 to 9 characters whose ends both lie inside tokens."""
    text = "".join(pieces)
    edges = {sum(map(len, pieces[:place])) for place in range(len(pieces) + 1)}
    found = [
        text[start : start + size]
        for start in range(1, len(text) - 9)
        for size in range(5, 10)
        if start not in edges and start + size not in edges
    ]
    return random.Random(7).sample(sorted(set(found)), count)


def tokens_until(pieces: list[str], end: int) -> int:
    """How many tokens it takes until `end` characters are there."""
    return next(count for count in range(len(pieces) + 1) if len("".join(pieces[:count])) >= end)


@pytest.mark.parametrize("path", PATHS)
def test_a_stop_string_that_spans_tokens_ends_the_answer_before_it(two_nodes: tuple[Node, Node], path: str) -> None:
    entry, worker = two_nodes
    places = itertools.cycle([Place(entry, worker), Place(worker, worker)])
    pieces = pieces_of(next(places), path)
    text = "".join(pieces)
    assert "thunderstorm while" in text
    for stop, place in zip(inside_tokens(pieces, SUBSTRINGS), places, strict=False):
        for stream in (False, True):
            said, finish, sequence, tokens = told(
                path, place.post(path, with_stop(path, [stop], stream=stream)), stream=stream
            )
            assert said == text[: text.index(stop)], (stop, stream)
            assert (finish, sequence) == (("stop_sequence", stop) if path == MESSAGES else ("stop", None))
            assert tokens == tokens_until(pieces, text.index(stop) + len(stop)), stop
    next(places).assert_alive()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_held_back_text_comes_at_the_end_and_the_prompt_never_stops_an_answer(
    place: Place, path: str, stream: bool
) -> None:
    text = "".join(pieces_of(place, path))

    def ask(*stops: str) -> tuple[str, str]:
        return told(path, place.post(path, with_stop(path, list(stops), stream=stream)), stream=stream)[:2]

    whole = (text, "max_tokens" if path == MESSAGES else "length")
    assert ask(text[-4:] + "ZZQ") == whole
    assert ask(QUESTION) == whole
    assert ask("😀") == whole
    assert ask("ZZA", "ZZB", "ZZC", "ZZD", "ZZE") == whole
    assert ask() == whole
    first, second = text[20:25], text[23:29]
    said, _ = ask(first, second)
    assert said in {text[: text.index(first)], text[: text.index(second)]}
    assert first not in said
    assert second not in said


@pytest.mark.parametrize("path", PATHS)
def test_stop_strings_that_cannot_be_are_refused(place: Place, path: str) -> None:
    field = "stop_sequences" if path == MESSAGES else "stop"
    bad: list[Any] = [[""], ["x" * 10_000], ["x"] * (limits.STOP_STRINGS_MAX + 1)]
    for stops in bad if path == MESSAGES else [*bad, ""]:
        assert_refused(path, place.post(path, body(path, **{field: stops})), 400, field)
    place.assert_alive()
