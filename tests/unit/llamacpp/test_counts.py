"""Counts: told what llama-server's options ask for, prepared on a thread, and never more than one answer can hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from saiserve import limits
from saiserve.engines.frames import FrameDecoder
from saiserve.engines.llamacpp import prompting
from saiserve.engines.llamacpp.process import framed
from saiserve.engines.llamacpp.prompting import PromptReader
from saiserve.engines.llamacpp.protocol import FromProcess
from saiserve.engines.llamacpp.vocabulary import Extent, Vocabulary
from saiserve.engines.llamacpp.weights import LlamaModel
from saiserve.engines.messages import Count, Counted, Failed, FailureKind, Generate, Prompt, RefusalReason, Sampling
from saiserve.engines.packed import PACKED_FROM, ids_of, runs_of, spelled
from tests.unit.llamacpp.desk import Desk


@pytest.fixture(scope="module")
def vocabulary(tiny: Callable[[str], Path]) -> Vocabulary:
    model = LlamaModel(tiny("gemma3"))
    vocabulary = Vocabulary(model.vocab)
    vocabulary.model = model  # type: ignore[attr-defined]  # lives as long
    return vocabulary


def count(desk: Desk, prompt: Prompt, **wants: bool) -> Any:
    request_id = f"c{len(desk.said)}"
    desk.worker.handle(Count(request_id, "tiny", prompt, **wants), desk.now)
    desk.finish(request_id)
    (answer,) = desk.said[request_id]
    return answer


@pytest.mark.parametrize("long", [False, True])
def test_a_text_is_tokenised_as_its_options_say(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    if long:
        monkeypatch.setattr(prompting, "TEXT_ON_LOOP", 1)
    reader = PromptReader(vocabulary, None)
    marker, bos = max(vocabulary.end_tokens), vocabulary.special.bos
    assert marker != bos
    monkeypatch.setattr(vocabulary, "special", replace(vocabulary.special, adds_bos=True))
    text = f"a{vocabulary.control_tokens[marker]}"

    def ids(**options: bool) -> tuple[int, ...]:
        return reader.complete(reader.read(Prompt(text=text, template_options=options))).ids

    assert ids() == ids(add_special=True, parse_special=True)
    assert (ids()[0], ids()[-1]) == (bos, marker)
    assert ids(add_special=False) == ids()[1:]
    assert marker not in ids(parse_special=False)
    assert ids(parse_special=False)[0] == bos


def test_long_counts_are_answered_from_a_thread(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    spelled_on: set[str] = set()
    real = Vocabulary.spelling

    def spelling(vocabulary: Vocabulary, token: int) -> bytes:
        spelled_on.add(threading.current_thread().name.rpartition("_")[0])
        return real(vocabulary, token)

    monkeypatch.setattr(Vocabulary, "spelling", spelling)
    for module in ("prompting", "intake"):
        monkeypatch.setattr(f"saiserve.engines.llamacpp.{module}.TEXT_ON_LOOP", 1_000)
    told = count(desk, Prompt(text="word " * 500), want_tokens=True)
    assert told.tokens == len(told.ids) == len(told.pieces)
    again = count(desk, Prompt(tokens=told.ids), want_tokens=True)
    assert (again.ids, again.pieces) == (told.ids, told.pieces)
    assert spelled_on == {"tokenise"}


def test_more_than_an_answer_holds_is_refused_untokenised(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompting, "COUNTED_MAX", 1_000)
    for prompt in (Prompt(text="é" * 501), Prompt(tokens=(1,) * 1_001)):
        refused = count(desk, prompt)
        assert refused.reason is RefusalReason.BAD_REQUEST
        assert "1000" in refused.detail
    assert count(desk, Prompt(text="é" * 500)).tokens >= 500


def test_an_answer_that_would_be_too_long_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompting, "COUNTED_BYTES_MAX", 2_000)
    text = Prompt(text="ab" * 500)
    refused = count(desk, text, want_tokens=True)
    assert refused.reason is RefusalReason.BAD_REQUEST
    assert "send it in parts" in refused.detail
    assert isinstance(count(desk, text, want_text=True), Counted)


def test_given_tokens_beyond_the_context_are_refused_by_their_number(desk: Desk) -> None:
    refused = desk.refusal(Prompt(tokens=(-1,) * 1024))  # not even looked at
    assert (refused.reason, refused.prompt_tokens) == (RefusalReason.TOO_LONG, 1024)


def test_two_threads_spell_at_once(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = vocabulary.tokenise("a", special=False)[-1], vocabulary.special.bos
    right = {token: vocabulary.spelling(token) for token in (first, second)}
    assert right[first] != right[second]
    real, others = llama_cpp.llama_token_to_piece, [second]

    def interrupted(*given: Any) -> int:
        size = real(*given)
        if others:
            between = threading.Thread(target=vocabulary.spelling, args=(others.pop(),))
            between.start()
            between.join()
        return int(size)

    monkeypatch.setattr(llama_cpp, "llama_token_to_piece", interrupted)
    assert vocabulary.spelling(first) == right[first]


def test_a_message_too_long_to_be_sent_fails_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ENGINE_MESSAGE_BYTES_MAX", 500)
    sent = b"".join(map(framed, (Counted("short", 1), Counted("long", 1, text="x" * 501))))
    short, long = FrameDecoder[FromProcess](FromProcess).feed(sent)
    assert short == Counted("short", 1)
    assert isinstance(long, Failed)
    assert (long.id, long.kind) == ("long", FailureKind.INTERNAL)


def test_a_generation_of_a_plain_text_is_as_before(desk: Desk) -> None:
    asked = Generate("g", "tiny", Prompt(text="hello"), Sampling(seed=1, temperature=0), max_tokens=3)
    desk.worker.handle(asked, desk.now)
    desk.finish("g")
    assert desk.result("g")[2].completion_tokens <= 3


@pytest.mark.parametrize("tokens", [PACKED_FROM - 1, PACKED_FROM, PACKED_FROM + 1])
def test_very_many_tokens_are_packed_and_the_same(desk: Desk, tokens: int) -> None:
    ids = tuple(at % 250 for at in range(tokens))
    told = count(desk, Prompt(tokens=ids), want_tokens=True)
    assert (told.packed is not None) == (told.ids is None) == (tokens >= PACKED_FROM)
    spelling = desk.worker._vocabulary.spelling
    assert tuple(ids_of(told)) == ids
    assert spelled(told) == b"".join(map(spelling, ids))
    runs = list(runs_of(told, 1_000))
    assert [len(run) for run, _ in runs[:-1]] == [1_000] * (tokens // 1_000)
    assert [(token, piece) for run in runs for token, piece in zip(*run, strict=True)] == [
        (token, spelling(token)) for token in ids
    ]


def test_what_must_fit_is_refused_before_it_is_spelled(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Vocabulary, "spelling", lambda _self, _token: pytest.fail("it is not wanted"))
    for prompt in (Prompt(tokens=(1,) * 1_024), Prompt(text="x" * 1_024)):
        vocabulary = desk.worker._vocabulary
        vocabulary.__dict__["_most_of_a_token"] = Extent(2, 2, 1)
        refused = count(desk, prompt, want_tokens=True, must_fit=True)
        assert (refused.reason, refused.context_tokens) == (RefusalReason.TOO_LONG, 1_024)
    monkeypatch.undo()
    assert count(desk, Prompt(text="x" * 1_023), must_fit=True).tokens == 1_023
    assert count(desk, Prompt(text="x" * 1_024)).tokens == 1_024
