"""Vectors that a generating model makes beside its streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from saiserve.engines.messages import (
    Embed,
    RefusalReason,
    Refused,
    Tokens,
)
from tests.unit.llamacpp.desk import Desk, sampled


def test_embeddings_do_not_change_what_is_generated_beside_them(desk: Desk) -> None:
    alone, _, _ = desk.answer("embedding neighbour", max_tokens=40, sampling=sampled(ignore_eos=True))
    stream = desk.ask("embedding neighbour", max_tokens=40, sampling=sampled(ignore_eos=True))
    desk.step()
    desk.worker.handle(Embed("e", "tiny", ("hello", "x" * 200, (1, 2, 3))), desk.now)
    desk.finish(stream, "e")
    assert desk.result(stream)[0] == alone
    (embedded,) = desk.said["e"]
    vectors = [np.frombuffer(one, "<f4") for one in embedded.vectors]
    assert [len(one) for one in vectors] == [32, 32, 32]
    assert embedded.prompt_tokens == 4 + 200 + 3
    desk.worker.handle(Embed("f", "tiny", ("hello",)), desk.now)
    desk.finish("f")
    np.testing.assert_allclose(np.frombuffer(desk.said["f"][0].vectors[0], "<f4"), vectors[0], atol=1e-4)


def test_a_long_embedding_is_computed_in_the_gaps_of_a_stream(desk: Desk) -> None:
    stream = desk.ask(max_tokens=400, sampling=sampled(ignore_eos=True))
    while not any(isinstance(one, Tokens) for one in desk.said[stream]):
        desk.step()
    begun = len(desk.said[stream])
    desk.worker.handle(Embed("e", "tiny", ("x" * 900,)), desk.now)
    desk.finish("e")
    chunks = -(-900 // desk.worker._embeddings.chunk_max)
    assert len(desk.said[stream]) - begun >= chunks - 1
    alone = Embed("f", "tiny", ("x" * 900,))
    desk.finish(stream)
    desk.worker.handle(alone, desk.now)
    desk.finish("f")
    np.testing.assert_allclose(
        np.frombuffer(desk.said["e"][0].vectors[0], "<f4"),
        np.frombuffer(desk.said["f"][0].vectors[0], "<f4"),
        atol=1e-4,
    )


@pytest.mark.parametrize("pooling", ["last", "cls", "mean", "none", ""])
def test_each_pooling_is_of_the_tokens_it_names(desk: Desk, pooling: str) -> None:
    tokens = tuple(range(100))
    desk.worker.handle(Embed("e", "tiny", (tokens,), pooling), desk.now)
    desk.finish("e")
    context = desk.worker._context
    parts = [context.embed(tokens[at : at + 50], at) for at in (0, 50)]
    context.embed_end()
    rows = np.concatenate([part for part in parts if part is not None])
    mean = rows.mean(axis=0)
    expected = {"last": rows[-1], "cls": rows[0], "mean": mean, "none": rows.ravel(), "": mean}[pooling]
    np.testing.assert_allclose(np.frombuffer(desk.said["e"][0].vectors[0], "<f4"), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("inputs", "pooling", "reason"),
    [
        ((), "mean", RefusalReason.BAD_REQUEST),
        (("a",), "median", RefusalReason.BAD_REQUEST),
        (("query", "document"), "rank", RefusalReason.BAD_REQUEST),
        (("a" * 900,) * 450, "none", RefusalReason.BAD_REQUEST),
        (("",), "mean", RefusalReason.BAD_REQUEST),
        (((999,),), "mean", RefusalReason.BAD_REQUEST),
        (("a" * 2000,), "mean", RefusalReason.TOO_LONG),
    ],
)
def test_embeddings_that_cannot_be_made_are_refused(
    desk: Desk, inputs: tuple[Any, ...], pooling: str, reason: RefusalReason
) -> None:
    desk.worker.handle(Embed("e", "tiny", inputs, pooling), desk.now)
    desk.finish("e")  # long texts are read on a thread
    (refused,) = desk.said["e"]
    assert isinstance(refused, Refused)
    assert refused.reason is reason
