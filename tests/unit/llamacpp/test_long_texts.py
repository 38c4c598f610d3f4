"""Texts too long to be tokenised beside running streams: refused by length where that is certain, else on a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saiserve.engines.llamacpp.vocabulary import Extent, Vocabulary, extent_of
from saiserve.engines.llamacpp.weights import LlamaModel
from saiserve.engines.messages import Count, Counted, Embed, Prompt, RefusalReason, Refused, Sampling
from saiserve.engines.packed import spelled
from tests.unit.llamacpp.desk import Desk

FREE = Sampling(seed=4, temperature=1.2, ignore_eos=True)
TEXT_ON_LOOP = 5_000
LONG = 6 * TEXT_ON_LOOP


@pytest.fixture(autouse=True)
def _short_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("prompting", "intake"):
        monkeypatch.setattr(f"saiserve.engines.llamacpp.{module}.TEXT_ON_LOOP", TEXT_ON_LOOP)


@pytest.fixture
def tokenised_on(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The thread and the length of each text tokenised."""
    seen: list[tuple[str, int]] = []
    real = Vocabulary.tokenise

    def tokenise(vocabulary: Vocabulary, text: str, **options: Any) -> list[int]:
        seen.append((threading.current_thread().name, len(text)))
        return real(vocabulary, text, **options)

    monkeypatch.setattr(Vocabulary, "tokenise", tokenise)
    return seen


@pytest.mark.parametrize("content", ["<|im_end|>", "x", "word ", "é", " \n", "\t"])
def test_what_cannot_fit_is_refused_untokenised(desk: Desk, tokenised_on: list[tuple[str, int]], content: str) -> None:
    text = content * (LONG // len(content))
    for prompt in (Prompt(text=text), Prompt(messages=({"role": "user", "content": text},))):
        refused = desk.refusal(prompt)
        assert refused.reason is RefusalReason.TOO_LONG
        assert refused.prompt_tokens >= refused.context_tokens == 1024
    desk.worker.handle(Embed("e", "tiny", ("short", text)), desk.now)
    desk.finish("e")
    assert (desk.said["e"][0].reason, desk.said["e"][0].index) == (RefusalReason.TOO_LONG, 1)
    assert not tokenised_on


def test_of_inputs_for_vectors_the_first_that_is_too_long_ends_the_reading(
    desk: Desk, tokenised_on: list[tuple[str, int]]
) -> None:
    desk.worker._vocabulary.__dict__["_most_of_a_token"] = Extent(100, 100, 100)  # so that nothing is sure beforehand
    desk.worker.handle(Embed("e", "tiny", ("short", *["x" * 2_000] * 50)), desk.now)
    desk.finish("e")
    refused = desk.said["e"][0]
    assert (refused.reason, refused.prompt_tokens) == (RefusalReason.TOO_LONG, 2_000)
    assert (refused.index, refused.detail[:8]) == (1, "input 1 ")
    assert [length for _, length in tokenised_on] == [5, 2_000]


def test_white_space_that_may_be_dropped_is_tokenised_on_a_thread_before_it_is_refused(
    desk: Desk, tokenised_on: list[tuple[str, int]]
) -> None:
    desk.worker._vocabulary._drops_space = True
    refused = desk.refusal(Prompt(text=" \n" * LONG))
    assert refused.reason is RefusalReason.TOO_LONG
    assert refused.prompt_tokens == 2 * LONG
    assert {thread.rpartition("_")[0] for thread, length in tokenised_on if length > TEXT_ON_LOOP} == {"tokenise"}


def test_a_long_text_is_counted_on_a_thread_as_it_is_in_pieces(desk: Desk, tokenised_on: list[tuple[str, int]]) -> None:
    messages = ({"role": "user", "content": "ab<|im_end|> " * (LONG // 13)},)
    desk.worker.handle(Count("c", "tiny", Prompt(messages=messages), want_tokens=True, want_text=True), desk.now)
    desk.finish("c")
    (counted,) = desk.said["c"]
    assert isinstance(counted, Counted)
    assert spelled(counted).decode() == counted.text
    assert {thread.rpartition("_")[0] for thread, _ in tokenised_on} == {"tokenise"}


def test_streams_go_on_while_a_long_text_is_tokenised(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = desk.answer(max_tokens=40, sampling=FREE)[0]
    may_go, real = threading.Event(), Vocabulary.tokenise

    def tokenise(vocabulary: Vocabulary, text: str, **options: Any) -> list[int]:
        if len(text) > TEXT_ON_LOOP:
            assert may_go.wait(30)
        return real(vocabulary, text, **options)

    monkeypatch.setattr(Vocabulary, "tokenise", tokenise)
    desk.worker._vocabulary._drops_space = True
    stream, long = desk.ask(max_tokens=40, sampling=FREE), desk.ask(Prompt(text=" " * LONG))
    desk.worker.handle(Embed("e", "tiny", tuple("x" * 500 for _ in range(LONG // 500))), desk.now)
    desk.finish(stream)
    assert desk.result(stream)[0] == alone
    assert long not in desk.said
    may_go.set()
    desk.finish(long, "e")
    assert isinstance(desk.said[long][0], Refused)
    assert len(desk.said["e"][0].vectors) == LONG // 500


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def vocabulary(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> Vocabulary:
    model = LlamaModel(tiny(request.param))
    vocabulary = Vocabulary(model.vocab)
    vocabulary.model = model  # type: ignore[attr-defined]  # lives as long
    return vocabulary


@pytest.mark.parametrize("drops_space", [True, False])
@given(text=st.text(max_size=200) | st.text("<|im_end|>ab \n", max_size=200) | st.text("thein \t\u3000", max_size=200))
def test_no_text_has_fewer_tokens_than_its_length_says(vocabulary: Vocabulary, text: str, drops_space: bool) -> None:
    vocabulary._drops_space = drops_space
    assert vocabulary.tokens_least(text) <= len(vocabulary.tokenise(text, special=True))


@given(data=st.binary(max_size=300) | st.text(" \n\tab\x0b\x1c", max_size=50).map(str.encode))
def test_an_extent_is_what_splitting_finds(data: bytes) -> None:
    words = data.split()
    assert extent_of(data) == Extent(len(data), sum(map(len, words)), len(words))


def test_many_words_are_many_tokens_however_long_one_may_be(vocabulary: Vocabulary) -> None:
    vocabulary.__dict__["_most_of_a_token"] = Extent(100, 100, 1)
    try:
        assert vocabulary.tokens_least("a " * 5_000) == 5_000
        assert vocabulary.tokens_least("a" * 10_000) == 100
    finally:
        del vocabulary.__dict__["_most_of_a_token"]
