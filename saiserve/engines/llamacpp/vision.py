"""Images to rows a text model can read, through the multimodal library in llama.cpp's bindings.

An image becomes a run of ids beyond the vocabulary, the same for the same bytes, so that prompts with images are cached
and shared like any other; the vectors behind the ids live as long as an answer holds the image, and a while longer.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp
from numpy.typing import NDArray

from saiserve.engines.llamacpp import native
from saiserve.engines.llamacpp.gguf_file import read_model_file
from saiserve.engines.llamacpp.image_file import ImageError, check_image
from saiserve.engines.llamacpp.kv import IMAGE_IDS_FIRST
from saiserve.engines.llamacpp.native import failure_reason
from saiserve.engines.llamacpp.weights import LlamaModel, LoadError

BLOCK = 1 << 13
"""Ids of one run of image rows, at most."""
END_ID = 1 << 31
"""Within what the prefix tree stores."""
NOWHERE = "/nonexistent"
"""A search path without programs."""
KEPT_BYTES = 64 * 1024 * 1024
"""Vectors of images kept after their answers have ended: a conversation brings its images again each turn."""
TEXT_CHUNK = 0
"""mtmd_input_chunk_type; all others are images here."""


@contextmanager
def no_programs() -> Iterator[None]:
    """Let the library find no programs: it hands what is no image to ffmpeg, if there is one."""
    before = os.environ.get("PATH")
    os.environ["PATH"] = NOWHERE
    try:
        yield
    finally:
        os.environ["PATH"] = before or NOWHERE


@dataclass(eq=False)
class ImageRun:
    """Rows of one image, or of one slice of it."""

    first_id: int
    vectors: NDArray[np.float32] = field(repr=False)

    @property
    def ids(self) -> range:
        """Their ids."""
        return range(self.first_id, self.first_id + len(self.vectors))


@dataclass(frozen=True, eq=False)
class SeenImage:
    """What an image is to the text model: ids of text tokens around it and runs of its own rows, in order."""

    ids: tuple[int, ...]
    runs: tuple[ImageRun, ...]

    @property
    def size_bytes(self) -> int:
        """Memory of its vectors."""
        return sum(run.vectors.nbytes for run in self.runs)


class ImageRuns:
    """The vectors behind ids, for whoever computes batches."""

    def __init__(self) -> None:
        self._runs: weakref.WeakValueDictionary[int, ImageRun] = weakref.WeakValueDictionary()

    def add(self, run: ImageRun) -> None:
        """Make a run known while somebody holds it."""
        self._runs[run.first_id // BLOCK] = run

    def vector(self, token: int) -> NDArray[np.float32] | None:
        """The vector of an id; None when no image that is held has it."""
        run = self._runs.get(token // BLOCK)
        if run is None or token - run.first_id >= len(run.vectors):
            return None
        vector: NDArray[np.float32] = run.vectors[token - run.first_id]
        return vector


class ImageReader:
    """Decodes and encodes images for one model. `see` is slow and may run on one other thread; the model goes on."""

    def __init__(self, model: LlamaModel, path: Path, *, threads: int, use_gpu: bool = False) -> None:
        """Load the projector.

        Raises:
            ModelFileError: the file is damaged.
            LoadError: it is no projector, not this model's, or of a kind that cannot be served.
        """
        file = read_model_file(path)
        if file.architecture != "clip":
            raise LoadError(f"{path} is no multimodal projector")
        mtmd_cpp.mtmd_helper_log_set(native.on_log, ctypes.c_void_p(0))
        params = mtmd_cpp.mtmd_context_params_default()
        params.use_gpu, params.n_threads, params.print_timings, params.warmup = use_gpu, threads, False, False
        self._handle = mtmd_cpp.mtmd_init_from_file(str(path).encode(), model.handle, params)
        if not self._handle:
            raise LoadError(f"llama.cpp did not take the projector {path}: {failure_reason()}")
        self._refuse_what_is_not_served(path)
        self._marker = mtmd_cpp.mtmd_default_marker()
        self._width = int(llama_cpp.llama_model_n_embd_inp(model.handle))
        self._next_block = IMAGE_IDS_FIRST // BLOCK
        self.generation = 0
        """Rises when ids begin again from the first: prompts of different generations must share no prefix."""
        self._seen: OrderedDict[bytes, SeenImage] = OrderedDict()
        self.runs = ImageRuns()

    def _refuse_what_is_not_served(self, path: Path) -> None:
        why = ""
        if not mtmd_cpp.mtmd_support_vision(self._handle):
            why = "it does not see images"
        elif mtmd_cpp.mtmd_decode_use_mrope(self._handle):
            why = "its images have positions in two dimensions (M-RoPE)"
        elif mtmd_cpp.mtmd_decode_use_non_causal(self._handle, None):
            why = "its images' rows look ahead (non-causal attention)"
        if why:
            mtmd_cpp.mtmd_free(self._handle)
            raise LoadError(f"the projector {path} cannot be served: {why}")

    def see(self, data: bytes) -> SeenImage:
        """Decode and encode one image; the same bytes again cost nothing while they are remembered.

        Raises:
            ImageError: it cannot be decoded, or is too large.
        """
        digest = hashlib.blake2b(data, digest_size=16).digest()
        known = self._seen.pop(digest, None)
        if known is None:
            check_image(data)
            known = self._encode(data)
        self._seen[digest] = known
        while len(self._seen) > 1 and sum(image.size_bytes for image in self._seen.values()) > KEPT_BYTES:
            self._seen.popitem(last=False)
        return known

    def _encode(self, data: bytes) -> SeenImage:
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        with no_programs():
            bitmap = mtmd_cpp.mtmd_helper_bitmap_init_from_buf(self._handle, buffer, len(data), False)
        if not bitmap:
            raise ImageError("an image is damaged: it cannot be decoded")
        chunks = mtmd_cpp.mtmd_input_chunks_init()
        try:
            text = mtmd_cpp.mtmd_input_text()
            text.text, text.text_len = self._marker, len(self._marker)
            text.add_special, text.parse_special = False, True
            bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * 1)(ctypes.cast(bitmap, mtmd_cpp.mtmd_bitmap_p_ctypes))
            if mtmd_cpp.mtmd_tokenize(self._handle, chunks, ctypes.byref(text), bitmaps, 1) != 0:
                raise ImageError("an image cannot be prepared for this model")
            count = int(mtmd_cpp.mtmd_input_chunks_size(chunks))
            return self._collect([mtmd_cpp.mtmd_input_chunks_get(chunks, index) for index in range(count)])
        finally:
            mtmd_cpp.mtmd_input_chunks_free(chunks)
            mtmd_cpp.mtmd_bitmap_free(bitmap)

    def _collect(self, chunks: list[Any]) -> SeenImage:
        ids: list[int] = []
        runs: list[ImageRun] = []
        for chunk in chunks:
            if mtmd_cpp.mtmd_input_chunk_get_type(chunk) == TEXT_CHUNK:
                count = ctypes.c_size_t()
                tokens = mtmd_cpp.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
                ids += tokens[: count.value]
                continue
            run = self._run_of(chunk)
            ids += run.ids
            runs.append(run)
        return SeenImage(tuple(ids), tuple(runs))

    def _run_of(self, chunk: Any) -> ImageRun:
        if mtmd_cpp.mtmd_encode_chunk(self._handle, chunk) != 0:
            raise ImageError("an image cannot be encoded for this model")
        count = int(mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk))
        output = mtmd_cpp.mtmd_get_output_embd(self._handle)
        vectors = np.ctypeslib.as_array(output, shape=(count, self._width)).copy()
        if not np.isfinite(vectors).all():
            raise ImageError("an image's vectors are not finite")
        if count > BLOCK:
            raise ImageError(f"an image makes {count} rows for this model; {BLOCK} are possible")
        if self._next_block * BLOCK >= END_ID:
            self._next_block, self.generation = IMAGE_IDS_FIRST // BLOCK, self.generation + 1
            self._seen.clear()
        run = ImageRun(self._next_block * BLOCK, vectors)
        self._next_block += 1
        self.runs.add(run)
        return run

    def close(self) -> None:
        """Free the projector."""
        mtmd_cpp.mtmd_free(self._handle)
