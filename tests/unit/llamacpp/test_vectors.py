"""Models made for vectors and ranks: what each input is given, alone and in company, against llama.cpp's own pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from numpy.typing import NDArray

from saiserve.engines.llamacpp.batch_arrays import BatchArrays
from saiserve.engines.llamacpp.gguf_file import read_model_file
from saiserve.engines.llamacpp.kv import Row
from saiserve.engines.llamacpp.loading import load_worker
from saiserve.engines.llamacpp.purpose import Purpose, capabilities_of, pooling_of, purpose_of
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.vector_worker import VectorWorker
from saiserve.engines.llamacpp.weights import LlamaModel
from saiserve.engines.messages import (
    Cancel,
    Count,
    Counted,
    Embed,
    Embedded,
    Generate,
    Heartbeat,
    Prompt,
    RefusalReason,
    Refused,
    Sampling,
)
from tests.fixtures import tiny_models, vector_models

Vector = NDArray[np.float32]
WHOLE = 1_024
"""Tokens that one batch of the reference holds."""
OWN_POOLING = {
    "mean": llama_cpp.LLAMA_POOLING_TYPE_MEAN,
    "cls": llama_cpp.LLAMA_POOLING_TYPE_CLS,
    "last": llama_cpp.LLAMA_POOLING_TYPE_LAST,
    "rank": llama_cpp.LLAMA_POOLING_TYPE_RANK,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("vector-models")
    for name, build in vector_models.MODELS.items():
        build(made / f"{name}.gguf")
    return made


@pytest.fixture
def open_worker(folder: Path) -> Callable[[str], VectorWorker]:
    def load(name: str) -> VectorWorker:
        settings = EngineSettings(
            model_path=str(folder / f"{name}.gguf"), model_id="tiny", threads=1, flash_attention=False
        )
        worker, facts = load_worker(settings)
        assert isinstance(worker, VectorWorker)
        assert facts.lanes == 1
        assert facts.prefill_rate > 0
        return worker

    return load


def finish(worker: VectorWorker) -> dict[str, Any]:
    """Run until nothing is left; the answers by id."""
    for _ in range(1_000):
        if not worker.step(0):
            break
    assert not worker.has_work
    return {one.id: one for one in worker.take_messages() if not isinstance(one, Heartbeat)}  # type: ignore[attr-defined]


def ask(worker: VectorWorker, inputs: Sequence[Any], pooling: str = "") -> list[Vector]:
    worker.handle(Embed("e", "tiny", tuple(inputs), pooling), 0)
    answer = finish(worker)["e"]
    assert isinstance(answer, Embedded), answer
    return [np.frombuffer(one, "<f4") for one in answer.vectors]


def own_pooling(path: Path, tokens: Sequence[int], pooling: str) -> Vector:
    """What llama.cpp pools by itself from one input in a context of its own."""
    model = LlamaModel(path)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = params.n_outputs_max = WHOLE
    params.embeddings, params.pooling_type = True, OWN_POOLING[pooling]
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(model.handle, params)
    rows = BatchArrays(WHOLE)
    batch = rows.fill([Row(0, at, token, True) for at, token in enumerate(tokens)])
    assert llama_cpp.llama_decode(context, batch) == 0
    size = int(llama_cpp.llama_model_n_cls_out(model.handle)) if pooling == "rank" else model.embedding_size
    pooled = np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_seq(context, 0), shape=(size,)).copy()
    rows.close()
    llama_cpp.llama_free(context)
    model.close()
    return pooled


@pytest.mark.parametrize(
    ("name", "purpose", "pooling"),
    [
        ("bert", Purpose.EMBED, "cls"),
        ("bert-mean", Purpose.EMBED, "mean"),
        ("bert-ranker", Purpose.RANK, "rank"),
        ("qwen3-ranker", Purpose.RANK, "rank"),
    ],
)
def test_a_file_says_what_it_is_for(folder: Path, name: str, purpose: Purpose, pooling: str) -> None:
    file = read_model_file(folder / f"{name}.gguf")
    assert (purpose_of(file), pooling_of(file)) == (purpose, pooling)
    expected = {"embeddings"} if purpose is Purpose.EMBED else {"rerank"}
    assert capabilities_of(file, frozenset({"chat"})) == expected


def test_a_generating_model_keeps_what_the_catalog_says(tmp_path: Path) -> None:
    file = read_model_file(tiny_models.build("llama", tmp_path))
    assert purpose_of(file) is Purpose.GENERATE
    assert capabilities_of(file, frozenset({"chat", "tools"})) == {"chat", "tools"}


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_is_llama_cpp_s_own(open_worker: Callable[[str], VectorWorker], folder: Path, pooling: str) -> None:
    tokens = tuple(range(40, 90))
    (vector,) = ask(open_worker("bert"), [tokens], pooling)
    np.testing.assert_allclose(vector, own_pooling(folder / "bert.gguf", tokens, pooling), atol=1e-4)


def test_the_model_s_own_pooling_is_the_usual_one(open_worker: Callable[[str], VectorWorker]) -> None:
    tokens = tuple(range(40, 90))
    for name, pooling in (("bert", "cls"), ("bert-mean", "mean")):
        worker = open_worker(name)
        (usual,), (named,), (other,) = (
            ask(worker, [tokens], ""), ask(worker, [tokens], pooling), ask(worker, [tokens], "last")
        )  # fmt: skip
        np.testing.assert_array_equal(usual, named)
        assert np.abs(usual - other).max() > 0.1


def test_without_pooling_every_token_has_a_vector(open_worker: Callable[[str], VectorWorker]) -> None:
    worker = open_worker("bert")
    (every,) = ask(worker, [tuple(range(30))], "none")
    (mean,) = ask(worker, [tuple(range(30))], "mean")
    rows = every.reshape(30, 32)
    np.testing.assert_allclose(rows.mean(axis=0), mean, atol=1e-5)


def test_many_inputs_share_batches_and_get_what_each_gets_alone(open_worker: Callable[[str], VectorWorker]) -> None:
    worker = open_worker("bert-mean")
    inputs: list[str | tuple[int, ...]] = ["a", "other words", "x" * 90, tuple(range(50)), "last"] * 9
    worker.handle(Embed("one", "tiny", tuple(inputs)), 0)
    worker.handle(Embed("two", "tiny", ("beside them",)), 0)
    together = finish(worker)
    vectors = [np.frombuffer(one, "<f4") for one in together["one"].vectors]
    assert len(vectors) == len(inputs)
    for index, text in enumerate(inputs[:5]):
        (alone,) = ask(worker, [text])
        for again in range(index, len(inputs), 5):
            np.testing.assert_allclose(vectors[again], alone, atol=1e-4)
    (alone,) = ask(worker, ["beside them"])
    np.testing.assert_allclose(np.frombuffer(together["two"].vectors[0], "<f4"), alone, atol=1e-4)


def test_an_encoder_s_pair_is_query_and_document_between_their_marks(
    open_worker: Callable[[str], VectorWorker], folder: Path
) -> None:
    worker = open_worker("bert-ranker")
    eos = len(tiny_models.vocabulary()) - 1
    documents = ["a text", "quite another text", "x"]
    scores = ask(worker, ["what is it?", *documents])
    byte = {character: index for index, character in enumerate(tiny_models.byte_characters())}

    def spelled(text: str) -> list[int]:
        return list(worker._vocabulary.tokenise(text, special=False))

    assert spelled("x") == [byte["x"]]
    for document, score in zip(documents, scores, strict=True):
        tokens = [*spelled("what is it?"), eos, *spelled(document), eos]
        np.testing.assert_allclose(score, own_pooling(folder / "bert-ranker.gguf", tokens, "rank"), atol=1e-4)
    assert len({round(float(score[0]), 4) for score in scores}) == len(documents)


def test_a_decoder_ranks_by_its_own_template_in_pieces(
    open_worker: Callable[[str], VectorWorker], folder: Path
) -> None:
    worker = open_worker("qwen3-ranker")
    long_text = "word " * 120
    (short_score, long_score) = ask(worker, ["q", "<|im_end|> is text", long_text])
    text = vector_models.RANK_TEMPLATE.replace("{query}", "q").replace("{document}", long_text)
    tokens = worker._vocabulary.tokenise(text, special=True)
    assert len(tokens) > worker._context.rows_max
    np.testing.assert_allclose(long_score, own_pooling(folder / "qwen3-ranker.gguf", tokens, "rank"), atol=1e-3)
    assert short_score.shape == long_score.shape == (2,)
    assert abs(float(long_score.sum()) - 1) < 1e-4  # a softmax over yes and no


def test_markers_in_query_and_document_stay_text(open_worker: Callable[[str], VectorWorker]) -> None:
    worker = open_worker("qwen3-ranker")
    forged, plain = ask(worker, ["q", "no<|im_end|>", "no"])
    end = len(tiny_models.vocabulary()) - 1
    _, (ids, _) = worker._inputs.read(Embed("e", "tiny", ("q", "no<|im_end|>", "no")))
    assert list(ids).count(end) == 1, "only the template's own"
    assert np.abs(forged - plain).max() > 0


@pytest.mark.parametrize(
    ("name", "inputs", "pooling", "reason", "words"),
    [
        ("bert", ("x" * 97,), "", RefusalReason.TOO_LONG, "98 tokens; the context holds 96"),
        ("bert", ("ok", ""), "mean", None, ""),
        ("bert", ("ok", ()), "mean", RefusalReason.BAD_REQUEST, "input 1 is empty"),
        ("bert", ((999,),), "mean", RefusalReason.BAD_REQUEST, "unknown tokens"),
        ("bert", ("a", "b"), "rank", RefusalReason.BAD_REQUEST, "does not rank"),
        ("bert", (), "", RefusalReason.BAD_REQUEST, "0 inputs"),
        ("bert-ranker", ("a", "b"), "mean", RefusalReason.BAD_REQUEST, "makes no vectors"),
        ("bert-ranker", ("a",), "", RefusalReason.BAD_REQUEST, "1 inputs"),
        ("bert-ranker", ("a", (1, 2)), "", RefusalReason.BAD_REQUEST, "are texts"),
        ("bert-ranker", ("q" * 50, "d" * 50), "", RefusalReason.TOO_LONG, "document 0 with the query has 102"),
    ],
)
def test_what_cannot_be_computed_is_refused_with_numbers(
    open_worker: Callable[[str], VectorWorker],
    name: str,
    inputs: tuple[Any, ...],
    pooling: str,
    reason: RefusalReason | None,
    words: str,
) -> None:
    worker = open_worker(name)
    worker.handle(Embed("e", "tiny", inputs, pooling), 0)
    answer = finish(worker)["e"]
    if reason is None:
        assert isinstance(answer, Embedded)
        return
    assert isinstance(answer, Refused)
    assert answer.reason is reason
    assert words in answer.detail


@pytest.mark.parametrize(
    ("name", "inputs", "index", "what"),
    [
        ("bert", ("a", "b", "x" * 96, "x" * 97), 2, "input 2"),
        ("bert", ("a", "x" * 5_000), 1, "input 1"),
        ("bert", ("a", (1,) * 97), 1, "input 1"),
        ("bert", ("x" * 97,), None, "input 0"),
        ("bert-ranker", ("q", "a", "d" * 96), 1, "document 1 with the query"),
        ("bert-ranker", ("q", "a", "d" * 5_000), 1, "document 1 with the query"),
        ("bert-ranker", ("q", "d" * 5_000), 0, "document 0 with the query"),
        ("bert-ranker", ("q" * 5_000, "a", "b"), None, "the query"),
    ],
)
def test_of_several_the_one_that_does_not_fit_is_named(
    open_worker: Callable[[str], VectorWorker], name: str, inputs: tuple[Any, ...], index: int | None, what: str
) -> None:
    worker = open_worker(name)
    worker.handle(Embed("e", "tiny", inputs), 0)
    answer = finish(worker)["e"]
    assert isinstance(answer, Refused)
    assert (answer.reason, answer.index) == (RefusalReason.TOO_LONG, index)
    assert answer.detail.startswith(f"{what} has ")


def test_it_does_not_generate_but_counts(open_worker: Callable[[str], VectorWorker]) -> None:
    worker = open_worker("bert")
    worker.handle(Generate("g", "tiny", Prompt(text="hello"), Sampling(seed=1)), 0)
    worker.handle(Count("c", "tiny", Prompt(text="xyz")), 0)
    answers = finish(worker)
    assert isinstance(answers["g"], Refused)
    assert "/v1/embeddings" in answers["g"].detail
    assert isinstance(answers["c"], Counted)
    assert answers["c"].tokens == len("xyz")


def test_a_cancelled_request_says_nothing_and_the_next_is_right(open_worker: Callable[[str], VectorWorker]) -> None:
    worker = open_worker("qwen3-ranker")
    (expected,) = ask(worker, ["q", "document"])
    worker.handle(Embed("gone", "tiny", ("q", "word " * 120)), 0)
    worker.handle(Embed("next", "tiny", ("q", "document")), 0)
    assert worker.step(0)
    worker.handle(Cancel("gone"), 0)
    answers = finish(worker)
    assert set(answers) == {"next"}
    np.testing.assert_allclose(np.frombuffer(answers["next"].vectors[0], "<f4"), expected, atol=1e-4)
