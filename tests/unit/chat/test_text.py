"""Characters and stop strings that are split over tokens."""

from __future__ import annotations

import pytest

from saiserve.chat.text import StopMatcher, Utf8Assembler


def test_a_character_split_over_tokens_is_held_until_it_is_whole() -> None:
    assembler = Utf8Assembler()
    parts = [assembler.feed(bytes([byte])) for byte in "é😀x".encode()]
    assert parts == ["", "é", "", "", "", "😀", "x"]
    assert assembler.finish() == ""


def test_a_character_never_completed_becomes_a_replacement_at_the_end() -> None:
    assembler = Utf8Assembler()
    assert assembler.feed("a😀".encode()[:-1]) == "a"
    assert assembler.pending == "😀".encode()[:-1]
    assert assembler.finish() == "�"


def test_bytes_that_are_no_utf8_become_replacements_without_losing_neighbours() -> None:
    assembler = Utf8Assembler()
    assert assembler.feed(b"a\xffb") == "a�b"


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "found", "rest"),
    [
        (["END"], ["some E", "N", "D more"], ["some ", "", ""], "END", ""),
        (["END"], ["some E", "N", "X"], ["some ", "", "ENX"], None, ""),
        (["END"], ["some EN"], ["some "], None, "EN"),
        (["aab"], ["aa", "a", "b"], ["", "a", ""], "aab", ""),
        (["abc", "b"], ["xa", "bc"], ["x", "a"], "b", ""),
        (["c", "abc"], ["xabc"], ["x"], "abc", ""),
        (["😀"], ["hi ", "😀"], ["hi ", ""], "😀", ""),
        ([], ["a", "b"], ["a", "b"], None, ""),
        ([""], ["a"], ["a"], None, ""),
        (["\n\n"], ["a\n", "b\n", "\n"], ["a", "\nb", ""], "\n\n", ""),
    ],
)
def test_stop_strings_are_found_over_pieces_and_never_leak(
    stops: list[str], pieces: list[str], shown: list[str], found: str | None, rest: str
) -> None:
    matcher = StopMatcher(stops)
    assert [matcher.feed(piece) for piece in pieces] == shown
    assert matcher.found == found
    assert matcher.finish() == rest


def test_nothing_is_shown_after_a_stop_string() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.feed("axb") == "a"
    assert matcher.feed("more") == ""
    assert matcher.finish() == ""
