"""An error nobody foresaw ends the request it happened to; the others go on, and nothing of it stays behind."""

from __future__ import annotations

from typing import Any

import pytest

from saiserve.engines.llamacpp.answer import Answer
from saiserve.engines.llamacpp.binding import LlamaContext
from saiserve.engines.llamacpp.constraint import ConstraintCompiler, Matcher
from saiserve.engines.llamacpp.embedding import Pending
from saiserve.engines.llamacpp.guard import FAULTS_MAX
from saiserve.engines.llamacpp.intake import Intake
from saiserve.engines.llamacpp.prompt_ends import PromptEnds
from saiserve.engines.llamacpp.prompting import PromptReader
from saiserve.engines.llamacpp.sampler import Sampler
from saiserve.engines.llamacpp.vector_inputs import VectorInputs
from saiserve.engines.messages import Constraint, Count, Embed, Failed, FailureKind, Prompt, Sampling, Tokens
from tests.unit.llamacpp.desk import Desk

FREE = Sampling(seed=4, temperature=1.2, ignore_eos=True)
DIGITS = Constraint("regex", "[0-9]{50}")


class Panic(BaseException):
    """What native code raises is no Exception."""


def failed(desk: Desk, request_id: str) -> Failed:
    desk.finish(request_id)
    message = desk.said[request_id][-1]
    assert isinstance(message, Failed), message
    assert message.kind is FailureKind.INTERNAL
    return message


def check_nothing_is_left(desk: Desk) -> None:
    """No lane, answer or preparation; the cells in use are those of prefixes held, and all can be had again."""
    worker = desk.worker
    assert not worker._answers
    assert not worker._intake._preparing
    assert not worker._embeddings
    scheduler = worker._scheduler
    load = scheduler.load()
    assert (load.busy, load.queued, load.queued_tokens) == (0, 0, 0)
    assert not scheduler._streams
    cache = scheduler._cache
    assert all(held.is_idle for held in cache.held.values())
    assert set(cache.held) | set(cache._free) == set(range(worker._context.sequences_max - 1))
    for held in cache.held.values():
        assert worker._context.span(held.sequence) == (0, held.ready - 1)
    asked = {"max_tokens": 12, "sampling": FREE}
    whole = desk.answer(Prompt(tokens=tuple(at % 250 for at in range(1000))), **asked)  # needs half of the cells
    assert desk.answer(Prompt(tokens=tuple(at % 250 for at in range(1000))), **asked)[0] == whole[0]


PLACES: list[tuple[Any, str, dict[str, Any]]] = [
    (PromptReader, "read", {}),
    (Intake, "_add_prompt", {}),
    (Sampler, "__init__", {}),
    (Answer, "resume", {}),
    (Sampler, "draw", {}),
    (Answer, "take", {}),
    (PromptEnds, "keep", {}),
    (ConstraintCompiler, "compile", {"constraint": DIGITS}),
    (Matcher, "forbidden", {"constraint": DIGITS}),
    (Matcher, "accept", {"constraint": DIGITS}),
    (LlamaContext, "logits", {}),
]


@pytest.mark.parametrize("error", [ZeroDivisionError, Panic], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(("place", "name", "options"), PLACES, ids=lambda value: getattr(value, "__name__", None))
def test_a_fault_is_its_request_s_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, options: dict[str, Any], error: type[Any]
) -> None:
    asked: dict[str, Any] = {"max_tokens": 30, "sampling": FREE, **options}
    alone = desk.answer("beside", **asked)[0]
    neighbour = desk.ask("beside", **asked)
    while not any(isinstance(one, Tokens) for one in desk.said.get(neighbour, ())):
        desk.step()
    real, calls = getattr(place, name), 0

    def broken(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise error
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, broken)
        asking = desk.ask("something else that is long enough", **asked)
        desk.finish(asking, neighbour)
    ends = [desk.said[one][-1] for one in (asking, neighbour)]
    (message,) = [one for one in ends if isinstance(one, Failed)]
    assert (message.kind, error.__name__ in message.detail) == (FailureKind.INTERNAL, True)
    if message.id == asking:
        assert desk.result(neighbour)[0] == alone
    check_nothing_is_left(desk)


def test_a_fault_in_a_later_draw_keeps_what_others_have(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"max_tokens": 40, "sampling": FREE}
    alone = [desk.answer(f"number {at}", **asked)[0] for at in range(3)]
    running = [desk.ask(f"number {at}", **asked) for at in range(3)]
    for _ in range(10):
        desk.step()
    victim = desk.worker._answers[running[1]]
    monkeypatch.setattr(victim.sampler, "draw", lambda *_: 1 / 0)
    failed(desk, running[1])
    desk.finish(*running)
    assert [desk.result(running[at])[0] for at in (0, 2)] == [alone[0], alone[2]]
    check_nothing_is_left(desk)


def test_the_same_prompt_again_fails_alone_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws from kept logits, before any batch."""
    asked: dict[str, Any] = {"max_tokens": 5, "sampling": FREE}
    before = desk.answer("twice", **asked)[0]
    with monkeypatch.context() as patch:
        patch.setattr(PromptEnds, "take", lambda *_: 1 / 0)
        failed(desk, desk.ask("twice", **asked))
    assert desk.answer("twice", **asked)[0] == before
    check_nothing_is_left(desk)


def test_a_batch_that_cannot_be_computed_is_tried_request_by_request(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"max_tokens": 20, "sampling": FREE}
    alone = desk.answer("good", **asked)[0]
    good, bad = desk.ask("good", **asked), desk.ask(Prompt(tokens=(7, 7, 7, 7, 9)), **asked)
    real = LlamaContext.decode

    def decode(context: LlamaContext, rows: Any) -> Any:
        if any(row.token == 9 and row.position == 4 for row in rows):
            raise ValueError("rows that must not pass")
        return real(context, rows)

    with monkeypatch.context() as patch:
        patch.setattr(LlamaContext, "decode", decode)
        failed(desk, bad)
        desk.finish(good)
    assert desk.result(good)[0] == alone
    check_nothing_is_left(desk)


def test_an_engine_that_can_compute_nothing_ends(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlamaContext, "decode", lambda *_: 1 / 0)
    for at in range(FAULTS_MAX):
        desk.ask(f"number {at}")
    for _ in range(FAULTS_MAX - 1):
        desk.step()
    with pytest.raises(ZeroDivisionError):
        desk.step()


@pytest.mark.parametrize(
    ("place", "name"), [(VectorInputs, "read"), (LlamaContext, "embed"), (Pending, "take"), (Pending, "answer")]
)
def test_vectors_fail_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> None:
    stream = desk.ask(max_tokens=20, sampling=FREE)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, lambda *_: 1 / 0)
        desk.worker.handle(Embed("e", "tiny", ("hello", "there")), desk.now)
        failed(desk, "e")
    desk.worker.handle(Embed("f", "tiny", ("hello", "there")), desk.now)
    desk.finish("f", stream)
    assert len(desk.said["f"][0].vectors) == 2
    check_nothing_is_left(desk)


def test_a_count_fails_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saiserve.engines.llamacpp.intake.counted", lambda *_: 1 / 0)
    desk.worker.handle(Count("c", "tiny", Prompt(text="abc")), desk.now)
    desk.collect()
    failed(desk, "c")
    check_nothing_is_left(desk)
