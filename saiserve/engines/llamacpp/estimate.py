"""What serving a model file will take of memory, told from its header alone, before anything is loaded.

Nothing here imports llama.cpp: the node asks before it starts a process, the process asks again before it loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from saiserve.engines.llamacpp.gguf_file import BLOCKS, ModelFile
from saiserve.engines.llamacpp.purpose import Purpose, is_encoder, purpose_of
from saiserve.engines.llamacpp.settings import (
    BATCH_MAX,
    CELLS_DEFAULT,
    CONTEXT_DEFAULT_MAX,
    SEQUENCES_MAX,
    EngineSettings,
)
from saiserve.engines.llamacpp.window import kept_share

KV_BYTES: Final = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""Bytes per value of each KV type."""
CELLS_MULTIPLE: Final = 256
"""llama.cpp pads the cache to this."""
PROCESS_BYTES: Final = 128 << 20
"""Interpreter, libraries and tables of an engine process, without anything of the model."""
Q8_0: Final = 8
SLOW_TYPES: Final = {3: "Q4_1", 7: "Q5_1"}
"""Types by ggml's number whose products llama.cpp computes one row after the other, however many there are."""
SLOW_SHARE: Final = 0.5
"""Of a model's weights, from which they are worth turning into another type."""
REENCODED_BYTES_MAX: Final = 512 << 20
"""Of a file. In a larger model a lone stream waits for the memory its weights lie in, and these would take more of it."""
SCORE_BYTES: Final = 4
ACTIVATIONS: Final = 4
"""Rows of the model's width that are alive at once in a batch, beside one of its feed-forward width."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of host memory by use. What lies on a GPU is not in it."""

    weights: int = 0
    kv: int = 0
    """The KV cache."""
    compute: int = 0
    """Logits, activations, and the process itself."""
    cache: int = 0
    """Parked prefixes, when their store is full."""
    cells: int = 0
    """KV cells that `kv` is for."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.compute + self.cache

    def describe(self) -> str:
        """The numbers in half a sentence."""
        parts = [f"{gigabytes(self.weights)} weights", f"{gigabytes(self.kv)} for {self.cells} cells"]
        parts += [f"{gigabytes(self.compute)} to compute"]
        parts += [f"{gigabytes(self.cache)} parked prefixes"] if self.cache else []
        return f"about {gigabytes(self.total)} GB ({', '.join(parts)})"


def score_bytes(file: ModelFile, cells: int) -> int:
    """Bytes for one layer's scores of the longest batch, without flash attention."""
    return file.number("attention.head_count") * cells * BATCH_MAX * SCORE_BYTES


def estimate_memory(file: ModelFile, settings: EngineSettings) -> MemoryEstimate:
    """What an engine process with these settings will hold at most."""
    cells = 0 if is_encoder(file) else sizes(file, settings)[1]
    on_host = _host_share(file, settings.gpu_layers)
    scores = 0 if settings.flash_attention else score_bytes(file, cells)
    return MemoryEstimate(
        weights=int(_weight_bytes(file, settings) * on_host) + _companions(settings),
        kv=int(kv_bytes(file, cells, settings.kv_type) * kept_share(file, settings, cells) * on_host),
        compute=compute_bytes(file) + scores,
        cache=settings.cache_bytes if purpose_of(file) is Purpose.GENERATE else 0,
        cells=cells,
    )


def may_reencode(file: ModelFile, settings: EngineSettings) -> bool:
    """Whether a model's weights are turned into Q8_0 when it is loaded, if that proves faster (reencoding.py)."""
    slow = sum(file.weights.get(kind, 0) for kind in SLOW_TYPES)
    wanted = settings.reencode and settings.gpu_layers == 0 and file.bytes_total <= REENCODED_BYTES_MAX
    return wanted and slow > SLOW_SHARE * sum(file.weights.values()) and purpose_of(file) is Purpose.GENERATE


def _weight_bytes(file: ModelFile, settings: EngineSettings) -> int:
    if not may_reencode(file, settings):
        return file.bytes_total
    more = sum(count * max(0.0, _weight_size(Q8_0) - _weight_size(kind)) for kind, count in file.weights.items())
    return file.bytes_total + int(more)  # all types become Q8_0; what becomes smaller is not counted


def _weight_size(kind: int) -> float:
    """Bytes of one weight; as many as of Q8_0 where a type is not known."""
    values, size = BLOCKS.get(kind, BLOCKS[Q8_0])
    return size / values


def _companions(settings: EngineSettings) -> int:
    """Adapters and projector, which stay in host memory; a missing file is told when it is loaded."""
    paths = [Path(one.path) for one in settings.adapters] + [Path(settings.mmproj_path or ".")]
    return sum(path.stat().st_size for path in paths if path.is_file())


def sizes(file: ModelFile, settings: EngineSettings) -> tuple[int, int]:
    """Context of one request and cells of the cache, both in tokens, as the engine will have them."""
    trained = file.value("context_length")
    usual = min(trained, CONTEXT_DEFAULT_MAX) if isinstance(trained, int) and trained > 0 else CONTEXT_DEFAULT_MAX
    context_tokens = settings.context_tokens or usual
    cells = max(settings.cells or max(context_tokens, CELLS_DEFAULT), context_tokens)
    return context_tokens, -(-cells // CELLS_MULTIPLE) * CELLS_MULTIPLE


def kv_bytes(file: ModelFile, cells: int, kv_type: str) -> int:
    """The KV cache's size; 0 when the file does not say enough. Layers without attention keep no cells."""
    layers, heads, width = (file.number(key) for key in ("block_count", "attention.head_count", "embedding_length"))
    if not (layers and heads and width):
        return 0
    by_layer = file.value("attention.head_count_kv")
    if isinstance(by_layer, list):
        kv_heads = sum(count for count in by_layer if isinstance(count, int) and count > 0)
    else:
        attending = -(-layers // (file.number("full_attention_interval") or 1))
        kv_heads = (file.number("attention.head_count_kv") or heads) * attending
    head = width // heads
    per_head = (file.number("attention.key_length") or head) + (file.number("attention.value_length") or head)
    return int(kv_heads * per_head * cells * KV_BYTES.get(kv_type, 2.0))


def compute_bytes(file: ModelFile) -> int:
    """Logits of every sequence twice (computed and kept), the activations of one batch, and the process."""
    logits = 0 if is_encoder(file) else 2 * SEQUENCES_MAX * _vocabulary(file) * 4
    widths = file.number("feed_forward_length") + ACTIVATIONS * file.number("embedding_length")
    return logits + BATCH_MAX * widths * 4 + PROCESS_BYTES


def gigabytes(count: int) -> str:
    """Bytes as GB for people: two digits where it is little."""
    return f"{count / 1e9:.1f}" if count >= 1e9 else f"{count / 1e9:.2f}"


def _host_share(file: ModelFile, gpu_layers: int) -> float:
    """The part of the layers that stays in host memory; llama.cpp counts the output as one more."""
    layers = file.number("block_count") + 1
    return 0.0 if gpu_layers < 0 else max(0.0, 1 - gpu_layers / layers)


def _vocabulary(file: ModelFile) -> int:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else tokens if isinstance(tokens, int) else 0
