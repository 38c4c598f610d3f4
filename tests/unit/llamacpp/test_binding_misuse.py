"""What would end the process inside llama.cpp is a ValueError before it gets there, and the context lives on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from saiserve.engines.llamacpp.binding import ContextSettings, LlamaContext
from saiserve.engines.llamacpp.kv import DecodeOutcome, Row
from tests.fixtures import tiny_models

Open = Callable[..., LlamaContext]
GOOD = (Row(0, 0, 5, True),)


@pytest.mark.parametrize(
    "rows",
    [
        (),
        tuple(Row(0, at, 5, False) for at in range(513)),
        tuple(Row(at % 16, at // 16, 5, True) for at in range(65)),
        (Row(16, 0, 5, True),),
        (Row(-1, 0, 5, True),),
        (Row(0, 0, 263, True),),
        (Row(0, 0, -1, True),),
        (Row(0, 0, 5, False), Row(0, 0, 6, True)),
    ],
)
def test_rows_that_must_not_pass_are_refused(open_context: Open, rows: tuple[Row, ...]) -> None:
    context = open_context("llama")
    with pytest.raises(ValueError):
        context.decode(rows)
    assert context.decode(GOOD) is DecodeOutcome.DONE


def test_a_gap_and_a_full_cache_change_nothing(open_context: Open) -> None:
    context = open_context("llama", cells=256)
    assert context.decode(GOOD) is DecodeOutcome.DONE
    assert context.decode((Row(0, 5, 5, True),)) is DecodeOutcome.REJECTED
    assert context.decode(tuple(Row(1, at, 5, False) for at in range(256))) is DecodeOutcome.NO_ROOM
    assert context.span(0) == (0, 0)
    assert context.span(1) == (-1, -1)


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.logits(1),
        lambda c: c.logits(-1),
        lambda c: c.copy(0, 256, 0, -1),
        lambda c: c.copy(-1, 0, 0, -1),
        lambda c: c.remove(256, 0, -1),
        lambda c: c.span(-1),
        lambda c: c.save(16, partial=False),
        lambda c: c.restore(16, b"x", partial=False),
    ],
)
def test_ids_and_rows_out_of_range_are_refused(open_context: Open, call: Callable[[LlamaContext], Any]) -> None:
    context = open_context("llama")
    assert context.decode(GOOD) is DecodeOutcome.DONE
    with pytest.raises(ValueError):
        call(context)


@pytest.mark.parametrize("name", list(tiny_models.MODELS))
def test_a_damaged_blob_is_not_restored_and_empties_only_its_sequence(open_context: Open, name: str) -> None:
    context = open_context(name)
    for sequence in (0, 1):
        rows = tuple(Row(sequence, at, at + 1, at == 39) for at in range(40))
        assert context.decode(rows) is DecodeOutcome.DONE
    blob = context.save(0, partial=False)
    for damaged in (b"", blob[: len(blob) // 2], b"\xff" * 40, blob[:-1]):
        assert not context.restore(2, damaged, partial=False)
        assert context.span(1)[1] == 39
    assert context.restore(2, blob, partial=False)
    assert context.span(2)[1] == 39


@pytest.mark.parametrize(
    "changes",
    [{"sequences_max": 1}, {"sequences_max": 129}, {"outputs_max": 8}, {"kv_type": "f8"}, {"cells": 0}, {"threads": 0}],
)
def test_settings_out_of_range_are_refused(open_context: Open, changes: dict[str, Any]) -> None:
    model = open_context("llama").model
    with pytest.raises(ValueError):
        LlamaContext(model, ContextSettings(**({"cells": 256, "sequences_max": 16} | changes)))


def test_vectors_beside_generation_leave_the_next_logits_alone(open_context: Open) -> None:
    one, other = open_context("llama"), open_context("llama")
    for context in (one, other):
        assert context.decode(GOOD) is DecodeOutcome.DONE
    vectors = one.embed((1, 2, 3), 0)
    assert vectors is not None
    assert vectors.shape == (3, 32)
    one.embed_end()
    for context in (one, other):
        assert context.decode((Row(0, 1, 9, True),)) is DecodeOutcome.DONE
    assert one.logits(0).tobytes() == other.logits(0).tobytes()
