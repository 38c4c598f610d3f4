"""Which of llama.cpp's two ways to compute attention a model gets, told from its header alone (decision 0152).

On a CPU, flash attention takes each pair of a row and a cell for itself: with small heads most of that is overhead. Scores
as matrices take several rows at once, but want memory for them.
"""

from __future__ import annotations

from typing import Final

from saiserve.engines.llamacpp.gguf_file import ModelFile
from saiserve.engines.llamacpp.purpose import Purpose, purpose_of
from saiserve.engines.llamacpp.settings import BATCH_MAX, EngineSettings

SMALL_HEAD: Final = 64
"""Values per head up to which scores as matrices are faster on a CPU: measured with 64; with 256 they are slower."""
SCORES_BYTES_MAX: Final = 1 << 30
"""Memory for scores that speed may cost."""
PLAIN_KV_TYPES: Final = frozenset({"f32", "f16"})
"""A quantised cache needs flash attention."""
SCORE_BYTES: Final = 4


def uses_flash_attention(file: ModelFile, settings: EngineSettings, cells: int) -> bool:
    """What the settings say; else whether flash attention is the faster way for this model, where it is to run.

    `cells` are those of its KV cache. Inputs of models for vectors and ranks are one long batch each: flash attention.
    """
    if settings.flash_attention is not None:
        return settings.flash_attention
    if purpose_of(file) is not Purpose.GENERATE or settings.gpu_layers != 0 or settings.kv_type not in PLAIN_KV_TYPES:
        return True
    head = file.number("attention.key_length")
    heads = file.number("attention.head_count")
    if not head and heads:
        head = file.number("embedding_length") // heads
    return not 0 < head <= SMALL_HEAD or score_bytes(file, cells) > SCORES_BYTES_MAX


def score_bytes(file: ModelFile, cells: int) -> int:
    """Bytes for one layer's scores of the longest batch, without flash attention."""
    return file.number("attention.head_count") * cells * BATCH_MAX * SCORE_BYTES
