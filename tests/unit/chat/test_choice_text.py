"""One choice from tokens to events: text, stop strings, log-probabilities."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from saiserve.chat.answer import ChoiceText
from saiserve.chat.events import ChoiceFinished, StopKind, TextDelta
from saiserve.chat.request import ReasoningMarks
from saiserve.engines.messages import FinishReason, TokenLogprob, Tokens


def tokens(*pieces: bytes, logprobs: bool = False, first: int = 0) -> Tokens:
    ids = tuple(range(first, first + len(pieces)))
    entries = tuple(TokenLogprob(i, piece, -0.1) for i, piece in zip(ids, pieces, strict=True))
    return Tokens("a", ids, b"".join(pieces), entries if logprobs else None)


def test_half_a_character_waits_and_its_logprob_with_it() -> None:
    choice = ChoiceText(0)
    assert choice.tokens(tokens(b"a\xc3", logprobs=True)) == [TextDelta(0, "a", tokens=(0,))]
    (delta,) = choice.tokens(tokens(b"\xa9", logprobs=True, first=1))
    assert delta.text == "é"
    assert [entry.token for entry in delta.logprobs or ()] == [0, 1]


def test_logprobs_of_held_text_come_with_it_and_those_behind_a_stop_string_never() -> None:
    choice = ChoiceText(0, ("STOP",))
    assert choice.tokens(tokens(b"ok ", b"ST", logprobs=True)) == [
        TextDelta(0, "ok ", (TokenLogprob(0, b"ok ", -0.1),), tokens=(0,))
    ]
    assert choice.tokens(tokens(b"OP", b"more", logprobs=True, first=2)) == []
    assert choice.stopped
    assert choice.finish(FinishReason.LENGTH) == [ChoiceFinished(0, StopKind.STOP_STRING, "STOP")]


def test_an_unfinished_prefix_is_delivered_at_the_end() -> None:
    choice = ChoiceText(2, ("STOP",))
    assert choice.tokens(tokens(b"ST")) == []
    assert choice.finish(FinishReason.STOP) == [TextDelta(2, "ST", tokens=(0,)), ChoiceFinished(2, StopKind.END, None)]


def test_a_stop_string_the_engine_saw_is_believed() -> None:
    (finish,) = ChoiceText(0).finish(FinishReason.STOP_STRING, "x")
    assert finish == ChoiceFinished(0, StopKind.STOP_STRING, "x")


def test_logprobs_without_bytes_of_their_own_still_come_out() -> None:
    choice = ChoiceText(0)
    entries = (TokenLogprob(1, b"", -1.0), TokenLogprob(2, b"?", -1.0))
    (delta,) = choice.tokens(Tokens("a", (1, 2), b"whole", entries))
    assert (delta.text, delta.logprobs) == ("whole", entries)
    empty = TokenLogprob(3, b"", -1.0)
    assert choice.tokens(Tokens("a", (3,), b"", (empty,))) == [], "no text is no delta"
    assert choice.finish(FinishReason.STOP)[0] == TextDelta(0, "", (empty,), tokens=(3,))


def test_each_tokens_text_comes_with_its_logprob() -> None:
    deltas = ChoiceText(0).tokens(tokens(b"a", b"", b"bc", b"d", logprobs=True))
    assert [(delta.text, [entry.token for entry in delta.logprobs or ()]) for delta in deltas] == [
        ("a", [0]),
        ("bc", [1, 2]),
        ("d", [3]),
    ]
    assert [delta.tokens for delta in deltas] == [(0,), (1, 2), (3,)]


@given(
    pieces=st.lists(st.binary(max_size=3), max_size=20),
    group=st.integers(1, 4),
    stops=st.lists(st.text("ab", min_size=1, max_size=2), max_size=1),
)
def test_without_a_stop_every_logprob_comes_once_in_order(pieces: list[bytes], group: int, stops: list[str]) -> None:
    choice = ChoiceText(0, tuple(stops))
    events: list[object] = []
    for at in range(0, len(pieces), group):
        events += choice.tokens(tokens(*pieces[at : at + group], logprobs=True, first=at))
    events += choice.finish(FinishReason.STOP)
    deltas = [event for event in events if isinstance(event, TextDelta)]
    shown = [entry.token for delta in deltas for entry in delta.logprobs or ()]
    text = "".join(delta.text for delta in deltas)
    whole = b"".join(pieces).decode("utf-8", "replace")
    assert all(delta.text for delta in deltas[:-1])
    if choice.stopped:
        assert whole.startswith(text)
        assert shown == list(range(len(shown)))
    else:
        assert text == whole
        assert shown == list(range(len(pieces)))


@given(
    thought=st.text("ab\n<", max_size=8),
    answer=st.text("abc", max_size=12),
    gap=st.text("\n", max_size=2),
    begun=st.booleans(),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    logprobs=st.booleans(),
)
def test_stop_strings_hold_behind_the_reasoning_alone(
    thought: str, answer: str, gap: str, begun: bool, sizes: list[int], logprobs: bool
) -> None:
    head = f"{'' if begun else '<think>'}{thought}</think>{gap}"
    whole = (head + answer).encode()
    choice = ChoiceText(0, ("b", "\n", "think"), ReasoningMarks("<think>", "</think>", begun))
    events: list[TextDelta | ChoiceFinished] = []
    at = 0
    while at < len(whole):
        size = sizes[at % len(sizes)]
        events += choice.tokens(tokens(whole[at : at + size], logprobs=logprobs, first=at))
        at += size
    events += choice.finish(FinishReason.STOP)
    expected, found, _ = answer.partition("b")
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == head + expected
    assert events[-1] == ChoiceFinished(0, StopKind.STOP_STRING if found else StopKind.END, found or None)
