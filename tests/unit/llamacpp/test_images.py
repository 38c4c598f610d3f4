"""Images in prompts: answers as llama.cpp's own helper gives them, shared prefixes by content, faults refused."""

from __future__ import annotations

import base64
import ctypes
import itertools
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp import mtmd_cpp
from numpy.typing import NDArray

from saiserve.engines.llamacpp.binding import ContextSettings, LlamaContext
from saiserve.engines.llamacpp.image_file import IMAGE_PIXELS_MAX, ImageError, check_image
from saiserve.engines.llamacpp.image_parts import IMAGES_MAX
from saiserve.engines.llamacpp.kv import DecodeOutcome, Row
from saiserve.engines.llamacpp.loading import load_worker
from saiserve.engines.llamacpp.mixed_rows import cut_rows
from saiserve.engines.llamacpp.protocol import EngineLoadError
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.weights import LlamaModel
from saiserve.engines.llamacpp.worker import Worker
from saiserve.engines.messages import Constraint, Count, Prompt, RefusalReason, Sampling, Tokens
from tests.fixtures.tiny_mmproj import IMAGE_TOKENS, mmproj, png
from tests.unit.llamacpp.desk import Desk

GREEDY = Sampling(seed=1, temperature=0, ignore_eos=True)
DRAWN = Sampling(seed=1, temperature=8, ignore_eos=True, logprobs=0)
JPEG_HEAD = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x0b\x08"


@pytest.fixture(scope="module")
def projector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mmproj(tmp_path_factory.mktemp("projector") / "mmproj.gguf")


def settings_of(model: Path, projector: Path) -> EngineSettings:
    return EngineSettings(
        model_path=str(model),
        model_id="tiny",
        context_tokens=1024,
        cells=4096,
        lanes=4,
        threads=1,
        kv_type="f32",
        flash_attention=False,
        mmproj_path=str(projector),
    )


@pytest.fixture
def desk(tiny: Callable[[str], Path], projector: Path) -> Desk:
    worker, _ = load_worker(settings_of(tiny("llama"), projector))
    assert isinstance(worker, Worker)
    return Desk(worker)


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(data).decode()}"}}


def asking(*parts: dict[str, Any]) -> Prompt:
    return Prompt(messages=({"role": "user", "content": list(parts)},))


def logprobs_of(desk: Desk, request_id: str) -> list[float]:
    """What the drawn tokens were given."""
    said = (one for one in desk.said[request_id] if isinstance(one, Tokens))
    return [one.logprobs[0].logprob for one in said if one.logprobs]


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result


def by_the_helper(model_path: Path, projector: Path, words: str, images: list[bytes], forced: list[int]) -> list[float]:
    """Log-probabilities of these answer tokens by llama.cpp's helper for the whole prompt, in a context of its own."""
    model = LlamaModel(model_path)
    params = mtmd_cpp.mtmd_context_params_default()
    params.use_gpu, params.n_threads, params.print_timings, params.warmup = False, 1, False, False
    mtmd = mtmd_cpp.mtmd_init_from_file(str(projector).encode(), model.handle, params)
    context = LlamaContext(model, ContextSettings(cells=1024, sequences_max=4, kv_type="f32", flash_attention=False))
    bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * len(images))()
    for at, data in enumerate(images):
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        bitmap = mtmd_cpp.mtmd_helper_bitmap_init_from_buf(mtmd, buffer, len(data), False)
        bitmaps[at] = ctypes.cast(bitmap, mtmd_cpp.mtmd_bitmap_p_ctypes)
    given_text = mtmd_cpp.mtmd_input_text()
    encoded = words.encode()
    given_text.text, given_text.text_len = encoded, len(encoded)
    given_text.add_special, given_text.parse_special = False, True
    chunks = mtmd_cpp.mtmd_input_chunks_init()
    assert mtmd_cpp.mtmd_tokenize(mtmd, chunks, ctypes.byref(given_text), bitmaps, len(images)) == 0
    past = llama_cpp.llama_pos(0)
    handle = context._handle
    assert mtmd_cpp.mtmd_helper_eval_chunks(mtmd, handle, chunks, 0, 0, 512, True, ctypes.byref(past)) == 0
    pointer = llama_cpp.llama_get_logits_ith(handle, -1)
    answer = [float(log_softmax(np.ctypeslib.as_array(pointer, shape=(model.vocabulary_size,)))[forced[0]])]
    for at, (before, token) in enumerate(itertools.pairwise(forced)):
        assert context.decode((Row(0, past.value + at, before, True),)) is DecodeOutcome.DONE
        answer.append(float(log_softmax(context.logits(0))[token]))
    mtmd_cpp.mtmd_input_chunks_free(chunks)
    mtmd_cpp.mtmd_free(mtmd)
    context.close()
    model.close()
    return answer


def test_an_answer_about_images_is_the_helper_s(desk: Desk, tiny: Callable[[str], Path], projector: Path) -> None:
    one, other = png(seed=1), png(40, 30, seed=2)
    prompt = asking(text("see "), image(one), text(" and "), image(other), text(" ok?"))
    request = desk.ask(prompt, sampling=DRAWN, max_tokens=16)
    desk.finish(request)
    ids, _, finished = desk.result(request)
    assert len(set(ids)) > 4
    mark = mtmd_cpp.mtmd_default_marker().decode()
    words = f"<|im_start|>user\nsee {mark} and {mark} ok?<|im_end|>\n<|im_start|>assistant\n"
    expected = by_the_helper(tiny("llama"), projector, words, [one, other], ids)
    np.testing.assert_allclose(logprobs_of(desk, request), expected, atol=2e-3)
    swapped = by_the_helper(tiny("llama"), projector, words, [other, one], ids)
    assert np.abs(np.array(swapped) - expected).max() > 0.05, "other images would pass for these"
    vocabulary = desk.worker._vocabulary
    around = [vocabulary.tokenise(piece, special=True) for piece in words.split(mark)]
    assert finished.prompt_tokens == sum(map(len, around)) + 2 * IMAGE_TOKENS


def differ(left: list[float], right: list[float]) -> bool:
    """Whether two answers were drawn from other distributions; a tiny model's tokens alone hardly tell."""
    return len(left) != len(right) or float(np.abs(np.array(left) - right).max()) > 0.02


def test_the_same_bytes_share_a_prefix_and_others_do_not(desk: Desk) -> None:
    def ask(data: bytes) -> tuple[list[float], int]:
        request = desk.ask(asking(image(data), text(" what is it?")), sampling=DRAWN, max_tokens=8)
        desk.finish(request)
        return logprobs_of(desk, request), desk.result(request)[2].cached_tokens

    first, cold = ask(png(seed=1))
    again, warm = ask(png(seed=1))
    other, apart = ask(png(seed=2))
    assert not differ(first, again)
    assert differ(first, other)
    head = len(desk.worker._vocabulary.tokenise("<|im_start|>user\n", special=True))
    assert cold == 0
    assert warm > head + IMAGE_TOKENS
    assert apart <= head


def test_text_streams_beside_images_say_what_they_say_alone(desk: Desk) -> None:
    def seeing(seed: int) -> str:
        return desk.ask(asking(image(png(seed=seed)), text("?")), sampling=DRAWN, max_tokens=10)

    alone = desk.answer("just words", sampling=DRAWN, max_tokens=40)[0]
    first = seeing(3)
    desk.finish(first)
    stream = desk.ask("just words", sampling=DRAWN, max_tokens=40)
    for _ in range(5):
        desk.step()
    same, other, again = (seeing(seed) for seed in (3, 4, 3))
    desk.finish(stream, same, other, again)
    assert desk.result(stream)[0] == alone
    assert not differ(logprobs_of(desk, same), logprobs_of(desk, first))
    assert not differ(logprobs_of(desk, again), logprobs_of(desk, first))
    assert differ(logprobs_of(desk, other), logprobs_of(desk, first))


def test_a_schema_and_an_image_go_together(desk: Desk) -> None:
    request = desk.ask(asking(image(png()), text("?")), constraint=Constraint("regex", "ab{3}"), max_tokens=20)
    desk.finish(request)
    assert desk.result(request)[1] == b"abbb"


def test_an_answer_about_an_image_resumes_at_any_token(desk: Desk) -> None:
    prompt = asking(image(png(seed=5)), text(" go on"))
    whole = desk.answer(prompt, sampling=DRAWN, max_tokens=12)[0]
    for cut in range(1, 12):
        rest = desk.answer(prompt, sampling=DRAWN, max_tokens=12, resume_tokens=tuple(whole[:cut]))[0]
        assert whole[:cut] + rest == whole


def test_prompts_with_images_are_counted_whole(desk: Desk) -> None:
    desk.worker.handle(Count("c", "tiny", asking(image(png()), text("?")), want_tokens=True), desk.now)
    desk.finish("c")
    (counted,) = desk.said["c"]
    assert counted.tokens == len(counted.ids) == len(counted.pieces)
    assert counted.pieces.count(b"") >= IMAGE_TOKENS


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (image(b""), "cut short|neither"),
        (image(b"<svg/>"), "neither PNG"),
        (image(png()[:40]), "cannot be decoded"),
        (image(png()[:45] + b"x" * 500), "cannot be decoded"),
        (image(b"GIF89a" + b"\xff" * 400), "pixels"),
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}, "data: URIs only"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "data: URIs only"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,!!!"}}, "not valid base64"),
        ({"type": "input_audio", "input_audio": {}}, "cannot be read"),
    ],
)
def test_an_image_that_cannot_be_used_is_refused_and_others_go_on(desk: Desk, part: dict[str, Any], words: str) -> None:
    stream = desk.ask("beside", sampling=GREEDY, max_tokens=30)
    refused = desk.refusal(asking(image(png()), part, text("?")))
    assert refused.reason is RefusalReason.BAD_REQUEST
    assert any(word in refused.detail for word in words.split("|")), refused.detail
    desk.finish(stream)
    assert len(desk.result(stream)[0]) == 30


def test_too_many_images_and_a_prompt_without_room_are_refused(desk: Desk) -> None:
    many = [image(png(2, 2))] * (IMAGES_MAX + 1)
    assert desk.refusal(asking(*many)).reason is RefusalReason.BAD_REQUEST
    empty = "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    room = 1024 - len(desk.worker._vocabulary.tokenise(empty, special=True))
    long = desk.refusal(asking(image(png()), text("x" * (room - 2))))
    assert long.reason is RefusalReason.TOO_LONG
    assert long.prompt_tokens == 1024 - 2 + IMAGE_TOKENS


def test_a_model_without_a_projector_says_so(tiny: Callable[[str], Path]) -> None:
    settings = EngineSettings(model_path=str(tiny("llama")), model_id="tiny", cells=1024, context_tokens=512, threads=1)
    worker, _ = load_worker(settings)
    assert isinstance(worker, Worker)
    refused = Desk(worker).refusal(asking(image(png())))
    assert refused.reason is RefusalReason.BAD_REQUEST
    assert "does not see images" in refused.detail


def test_a_file_that_is_no_projector_or_of_another_width_ends_the_load(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    for wrong in (tiny("gemma3"), mmproj(tmp_path / "wide.gguf", width=48)):
        with pytest.raises(EngineLoadError, match=str(wrong)):
            load_worker(settings_of(tiny("llama"), wrong))


def test_sizes_are_read_of_every_kind() -> None:
    assert check_image(png(7, 5)) == (7, 5)
    assert check_image(b"GIF89a" + (9).to_bytes(2, "little") + (4).to_bytes(2, "little")) == (9, 4)
    assert check_image(JPEG_HEAD + (3).to_bytes(2, "big") + (8).to_bytes(2, "big")) == (8, 3)
    with pytest.raises(ImageError, match=str(IMAGE_PIXELS_MAX)):
        check_image(JPEG_HEAD + b"\xff\xff\xff\xff")


def test_a_png_that_holds_more_than_it_says_is_refused_before_it_is_inflated() -> None:
    whole = png(1, 1)
    start = whole.index(b"IDAT") - 4
    bomb = zlib.compress(b"\0" * 50_000_000, 9)
    forged = whole[:start] + struct.pack(">I", len(bomb)) + b"IDAT" + bomb + b"\0" * 4 + whole[-12:]
    with pytest.raises(ImageError, match="more than its width and height"):
        check_image(forged)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_damaged_images_never_end_the_process(desk: Desk, seed: int) -> None:
    random = np.random.default_rng(seed)
    reader = desk.worker._intake._reader._images
    assert reader is not None
    for _ in range(250):
        data = bytearray(png(int(random.integers(1, 40)), int(random.integers(1, 40)), seed=seed))
        for _ in range(int(random.integers(1, 6))):
            data[random.integers(8, len(data))] = random.integers(256)
        with suppress(ImageError):  # past the check of sizes, which would keep most from the decoder
            reader._encode(bytes(data))
    assert reader.see(png()).runs


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8", b"GIF89a"]))
def test_random_bytes_are_sized_or_refused(data: bytes, head: bytes) -> None:
    try:
        width, height = check_image(head + data)
    except ImageError:
        return
    assert 0 < width * height <= IMAGE_PIXELS_MAX


def test_an_answer_that_quotes_what_stood_before_an_image_is_guessed_up_to_it(
    tiny: Callable[[str], Path], projector: Path
) -> None:
    prompt = asking(text("look: abc"), image(png(seed=1)), text(" and abc"), image(png(seed=2)), text(" ?"))
    asked: dict[str, Any] = {"max_tokens": 40, "sampling": GREEDY, "constraint": Constraint("regex", "abc{30}")}
    answers = []
    for speculate in (False, True):
        worker, _ = load_worker(replace(settings_of(tiny("llama"), projector), speculate=speculate))
        assert isinstance(worker, Worker)
        answers.append(Desk(worker).answer(prompt, **asked)[:2])
    assert answers[0] == answers[1]
    assert answers[0][1] == b"ab" + b"c" * 30
    assert worker._scheduler.counters()["drafted"] > 0


def test_rows_whose_logits_an_image_would_overwrite_are_refused() -> None:
    rows = [Row(0, 0, 1, True), Row(0, 1, 1_000, False), Row(0, 2, 1, True)]
    with pytest.raises(ValueError, match="logits"):
        cut_rows(rows, lambda row: row.token == 1_000)
    with pytest.raises(ValueError, match="logits"):
        cut_rows([Row(0, 0, 1_000, True)], lambda row: row.token == 1_000)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=40))
def test_cut_batches_keep_order_and_put_logits_last(kinds: list[tuple[int, bool]]) -> None:
    rows = [Row(sequence, at, 1_000 if is_image else 1, False) for at, (sequence, is_image) in enumerate(kinds)]
    for sequence in {row.sequence for row in rows}:
        last = max(index for index, row in enumerate(rows) if row.sequence == sequence)
        if rows[last].token == 1:
            rows[last] = rows[last]._replace(wants_logits=True)
    runs = cut_rows(rows, lambda row: row.token == 1_000)
    flat = [index for _, run in runs for index in run]
    assert sorted(flat) == list(range(len(rows)))
    assert all((rows[index].token == 1_000) == is_image for is_image, run in runs for index in run)
    for sequence in range(4):
        own = [index for index in flat if rows[index].sequence == sequence]
        assert own == sorted(own)
    assert {index for index, row in enumerate(rows) if row.wants_logits} <= set(runs[-1][1])
