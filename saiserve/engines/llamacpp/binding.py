"""llama.cpp's context for generating, behind typed, checked calls.

Misuse that llama.cpp answers by ending the process (see docs/engine-process.md) is found here first and raised as ValueError.
Not thread-safe: one thread owns a context.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from saiserve.engines.llamacpp.batch_arrays import BatchArrays, Logits
from saiserve.engines.llamacpp.kv import SEQUENCE_IDS_MAX, DecodeOutcome, Family, Row
from saiserve.engines.llamacpp.mixed_rows import cut_rows
from saiserve.engines.llamacpp.native import failure_reason
from saiserve.engines.llamacpp.saved_state import SavedState, room_for
from saiserve.engines.llamacpp.weights import LlamaModel, LoadError

STATE_PARTIAL = 1
"""LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY."""

KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
"""Names of KV cache types to ggml's numbers."""

OUTCOMES = {0: DecodeOutcome.DONE, 1: DecodeOutcome.NO_ROOM}
"""What llama_decode returns; anything else: it refused."""


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """Sizes of one context. `cells` is the unified cache's size, shared by all sequences."""

    cells: int
    sequences_max: int = 64
    """Sequences in llama.cpp; one of them is the embeddings'."""
    batch_max: int = 512
    outputs_max: int = 64
    threads: int = 1
    kv_type: str = "f16"
    window_full: bool = True
    """Keep all cells of sliding-window layers (needed for branching back)."""
    flash_attention: bool = True


class LlamaContext:
    """A unified KV cache with the computation on it: `kv.KvCache`, logits and embeddings."""

    def __init__(self, model: LlamaModel, settings: ContextSettings) -> None:
        """Reserve memory and find the model's family by trying.

        Raises:
            ValueError: settings out of range.
            LoadError: llama.cpp could not make the context.
        """
        _check_settings(settings)
        self.model = model
        self._handle = llama_cpp.llama_init_from_model(model.handle, _context_params(settings))
        if not self._handle:
            raise LoadError(f"llama.cpp could not make a context of {settings.cells} tokens: {failure_reason()}")
        self._memory = llama_cpp.llama_get_memory(self._handle)
        if not self._memory:
            raise LoadError("llama.cpp keeps no cache for models of its kind, so it cannot generate token by token")
        self._vocabulary_size = model.vocabulary_size
        self.cells_total = int(llama_cpp.llama_n_ctx(self._handle))
        # The last native id is kept for embeddings; ids of twins, which begin behind ours, move up by one.
        self._embedding_id = int(llama_cpp.llama_n_seq_max(self._handle)) - 1
        self.sequences_max = self._embedding_id
        self.batch_max = min(int(llama_cpp.llama_n_ubatch(self._handle)), int(llama_cpp.llama_n_batch(self._handle)))
        self.outputs_max = settings.outputs_max
        self._rows = BatchArrays(self.batch_max)
        self._threads = settings.threads
        self._adapters: tuple[tuple[Any, float], ...] = ()
        self._row_type = ctypes.c_float * self._vocabulary_size
        self._outputs: dict[int, int] = {}
        self._views: dict[int, Logits] = {}
        """By address: llama.cpp's rows of logits stay where they are."""
        self._image_rows: BatchArrays | None = None
        self.image_vector: Callable[[int], Logits | None] | None = None
        """The vector behind an id beyond the vocabulary; None where the model sees no images."""
        self.window = model.window
        self.family = self._probe_family()
        """How this model's memory may be reused."""

    def rewind(self) -> None:
        """No sequence holds anything: the next token takes the first cell. Nothing happens while vectors are computed."""
        if llama_cpp.llama_memory_seq_pos_max(self._memory, self._embedding_id) < 0:
            llama_cpp.llama_memory_clear(self._memory, False)

    def clear(self) -> None:
        """Drop every sequence, that of vectors too, and let every cell be zero, whatever was in it."""
        llama_cpp.llama_memory_clear(self._memory, True)

    def copy(self, source: int, destination: int, start: int, end: int) -> None:
        """Let `destination` share the cells of `source` in [start, end)."""
        llama_cpp.llama_memory_seq_cp(self._memory, self._native(source), self._native(destination), start, end)

    def remove(self, sequence: int, start: int, end: int) -> bool:
        """Drop [start, end) from a sequence; False when the memory refused and nothing changed."""
        return bool(llama_cpp.llama_memory_seq_rm(self._memory, self._native(sequence), start, end))

    def span(self, sequence: int) -> tuple[int, int]:
        """Smallest and largest position present, (−1, −1) when empty."""
        native_id = self._native(sequence)
        low = int(llama_cpp.llama_memory_seq_pos_min(self._memory, native_id))
        return low, int(llama_cpp.llama_memory_seq_pos_max(self._memory, native_id))

    def save(self, sequence: int, *, partial: bool) -> SavedState:
        """The sequence's state as bytes."""
        self._check_stored(sequence)
        flags = STATE_PARTIAL if partial else 0
        size = int(llama_cpp.llama_state_seq_get_size_ext(self._handle, sequence, flags))
        memory = room_for(size)
        pointer = np.frombuffer(memory, np.uint8).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = int(llama_cpp.llama_state_seq_get_data_ext(self._handle, pointer, size, sequence, flags))
        if written == 0:
            raise MemoryError(f"the state of sequence {sequence} could not be saved")
        return memory[:written]

    def restore(self, sequence: int, blob: SavedState, *, partial: bool) -> bool:
        """Put a saved state into a sequence; False when it did not fit, and the sequence is empty then."""
        self._check_stored(sequence)
        if not blob:
            return False
        buffer = np.frombuffer(blob, np.uint8)
        pointer = buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        flags = STATE_PARTIAL if partial else 0
        return bool(llama_cpp.llama_state_seq_set_data_ext(self._handle, pointer, len(blob), sequence, flags))

    def decode(self, rows: tuple[Row, ...]) -> DecodeOutcome:
        """Compute a batch; afterwards `logits(index)` is valid for the rows that wanted them.

        Raises:
            ValueError: rows that llama.cpp must not see; nothing changed.
        """
        self._check_rows(rows)
        self._outputs = {}
        if self.image_vector is not None and any(row.token >= self._vocabulary_size for row in rows):
            return self._decode_mixed(rows)
        code = llama_cpp.llama_decode(self._handle, self._rows.fill(rows))
        if code == 0:
            self._outputs = {index: index for index, row in enumerate(rows) if row.wants_logits}
            return DecodeOutcome.DONE
        return OUTCOMES.get(code, DecodeOutcome.REJECTED)

    def _decode_mixed(self, rows: tuple[Row, ...]) -> DecodeOutcome:
        """Compute rows of images and of text one after the other; when one fails, all are taken back.

        Raises:
            ValueError: logits are wanted that the last batch would not have; nothing changed.
        """
        computed: list[Row] = []
        for is_image, indices in cut_rows(rows, lambda row: row.token >= self._vocabulary_size):
            part = [rows[index] for index in indices]
            if not part:
                continue
            code = llama_cpp.llama_decode(self._handle, self._filled(part, is_image=is_image))
            if code != 0:
                for row in computed:
                    self.remove(row.sequence, row.position, -1)
                return OUTCOMES.get(code, DecodeOutcome.REJECTED)
            computed += part
            self._outputs = {index: at for at, index in enumerate(indices) if rows[index].wants_logits}
        return DecodeOutcome.DONE

    def _filled(self, part: Sequence[Row], *, is_image: bool) -> llama_cpp.llama_batch:
        if not is_image:
            return self._rows.fill(part)
        if self._image_rows is None:
            self._image_rows = BatchArrays(self.batch_max, width=self.model.input_size)
        assert self.image_vector is not None
        return self._image_rows.fill(part, vector=self.image_vector)

    def logits(self, index: int) -> Logits:
        """The logits of the last batch's row `index`: a view that the next decode overwrites; may be changed."""
        if index not in self._outputs:
            raise ValueError(f"row {index} of the last batch has no logits")
        pointer = llama_cpp.llama_get_logits_ith(self._handle, self._outputs[index])
        address = ctypes.addressof(pointer.contents)
        view = self._views.get(address)
        if view is None:  # making one costs more than all the rest of this call
            view = self._views[address] = np.frombuffer(memoryview(self._row_type.from_address(address)), np.float32)
        return view

    def use_adapters(self, adapters: tuple[tuple[Any, float], ...]) -> None:
        """Compute with these LoRA adapters at these scales from the next batch on; nothing happens when they are in use."""
        if adapters == self._adapters:
            return
        self._adapters = adapters
        count, kind = len(adapters), llama_cpp.llama_adapter_lora_p_ctypes
        if count == 0:
            llama_cpp.llama_set_adapters_lora(self._handle, None, 0, None)
            return
        handles = (kind * count)(*(ctypes.cast(handle, kind) for handle, _ in adapters))
        scales = (ctypes.c_float * count)(*(scale for _, scale in adapters))
        llama_cpp.llama_set_adapters_lora(self._handle, handles, count, scales)

    def use_threads(self, threads: int) -> None:
        """Compute with so many threads from the next batch on."""
        if threads != self._threads:
            self._threads = threads
            llama_cpp.llama_set_n_threads(self._handle, threads, threads)

    def embed(self, tokens: Sequence[int], start: int) -> NDArray[np.float32] | None:
        """Compute tokens at positions from `start` of the embedding sequence; their vectors, (tokens, size), copied.

        At most `outputs_max` tokens, because every one becomes an output. None when there was no room.
        """
        rows = tuple(Row(0, start + offset, token, True) for offset, token in enumerate(tokens))
        self._check_rows(rows)
        self._outputs = {}
        llama_cpp.llama_set_embeddings(self._handle, True)
        try:
            if llama_cpp.llama_decode(self._handle, self._rows.fill(rows, sequence=self._embedding_id)) != 0:
                return None
            size = self.model.embedding_size
            vectors = [
                np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_ith(self._handle, index), shape=(size,))
                for index in range(len(rows))
            ]
            return np.stack(vectors)
        finally:
            llama_cpp.llama_set_embeddings(self._handle, False)

    def embed_end(self) -> None:
        """Empty the embedding sequence."""
        llama_cpp.llama_memory_seq_rm(self._memory, self._embedding_id, -1, -1)

    def close(self) -> None:
        """Free the context."""
        if self._handle is not None:
            llama_cpp.llama_free(self._handle)
            self._handle = None
            self._rows.close()
            if self._image_rows is not None:
                self._image_rows.close()

    def _native(self, sequence: int) -> int:
        """llama.cpp's id of a sequence or twin."""
        native_id = sequence if sequence < self._embedding_id else sequence + 1
        if not 0 <= native_id < SEQUENCE_IDS_MAX:
            raise ValueError(f"sequence {sequence} is outside [0, {SEQUENCE_IDS_MAX - 1})")
        return native_id

    def _check_stored(self, sequence: int) -> None:
        if not 0 <= sequence < self.sequences_max:
            raise ValueError(f"sequence {sequence} is outside [0, {self.sequences_max})")

    def _check_rows(self, rows: tuple[Row, ...]) -> None:
        if not 0 < len(rows) <= self.batch_max:
            raise ValueError(f"a batch of {len(rows)} rows; 1 to {self.batch_max} are possible")
        if sum(row.wants_logits for row in rows) > self.outputs_max:
            raise ValueError(f"more than {self.outputs_max} rows want logits")
        sequences, tokens = self.sequences_max, self._vocabulary_size
        places: set[tuple[int, int]] = set()
        for row in rows:
            if not 0 <= row.sequence < sequences:
                raise ValueError(f"sequence {row.sequence} is outside [0, {sequences})")
            if not 0 <= row.token < tokens and (self.image_vector is None or self.image_vector(row.token) is None):
                raise ValueError(f"token {row.token} is outside [0, {tokens})")
            places.add((row.sequence, row.position))
        if len(places) != len(rows):
            raise ValueError("two rows of one sequence at the same position")

    def _probe_family(self) -> Family:
        """Recurrent memories refuse to forget the last of two tokens; names and flags are not trusted alone."""
        if not self.model.has_decoder:
            return Family.FULL
        code = self.decode((Row(0, 0, 0, False), Row(0, 1, 0, True)))
        if code is not DecodeOutcome.DONE:
            raise LoadError("the model cannot compute two tokens")
        forgot = self.remove(0, 1, -1)
        self.remove(0, -1, -1)
        if not forgot or self.model.is_recurrent:
            return Family.RECURRENT
        return Family.WINDOW if self.window else Family.FULL


def _check_settings(settings: ContextSettings) -> None:
    if not 2 <= settings.sequences_max <= SEQUENCE_IDS_MAX // 2:
        raise ValueError(f"sequences_max {settings.sequences_max}: 2 to {SEQUENCE_IDS_MAX // 2}, twins lie above")
    if settings.outputs_max < settings.sequences_max:
        raise ValueError("outputs_max below sequences_max ends the process inside llama.cpp")
    if settings.kv_type not in KV_TYPES:
        raise ValueError(f"kv_type {settings.kv_type!r} is not one of {', '.join(KV_TYPES)}")
    if settings.cells < 1 or settings.batch_max < 1 or settings.threads < 1:
        raise ValueError("cells, batch_max and threads are at least 1")


def _context_params(settings: ContextSettings) -> llama_cpp.llama_context_params:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = settings.cells
    params.n_batch = params.n_ubatch = settings.batch_max
    params.n_seq_max = settings.sequences_max
    params.n_outputs_max = settings.outputs_max
    params.n_threads = params.n_threads_batch = settings.threads
    params.type_k = params.type_v = KV_TYPES[settings.kv_type]
    params.flash_attn_type = (
        llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        if settings.flash_attention
        else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    params.kv_unified = True
    params.swa_full = settings.window_full
    params.n_rs_seq = 0
    params.no_perf = True
    params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE
    return params
