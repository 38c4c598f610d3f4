"""The text shown does not depend on how tokens cut it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from saiserve.chat.text import StopMatcher, Utf8Assembler

ALPHABET = st.text(alphabet="abé😀", max_size=24)


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition, by trying every prefix."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


@given(data=st.binary(max_size=64), sizes=st.lists(st.integers(0, 5), max_size=30))
def test_any_cutting_of_any_bytes_decodes_as_the_whole(data: bytes, sizes: list[int]) -> None:
    assembler = Utf8Assembler()
    text = "".join(assembler.feed(piece) for piece in cut(data, sizes)) + assembler.finish()
    assert text == data.decode("utf-8", "replace")


@given(
    text=ALPHABET,
    stops=st.lists(st.text(alphabet="abé😀", max_size=4), max_size=4),
    sizes=st.lists(st.integers(0, 5), max_size=40),
)
def test_stops_agree_with_the_definition_for_every_cutting(text: str, stops: list[str], sizes: list[int]) -> None:
    assembler, matcher = Utf8Assembler(), StopMatcher(stops)
    shown = "".join(matcher.feed(assembler.feed(piece)) for piece in cut(text.encode(), sizes))
    shown += matcher.feed(assembler.finish()) + matcher.finish()
    assert (shown, matcher.found) == reference(text, stops)


@given(text=ALPHABET, stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_no_more_is_held_than_could_begin_a_stop(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    for character in text:
        matcher.feed(character)
        assert not matcher.held or any(stop.startswith(matcher.held) for stop in stops)
