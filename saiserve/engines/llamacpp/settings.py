"""How one model is to be served. Travels to the engine process over its socket, never in arguments or environment."""

from __future__ import annotations

from dataclasses import dataclass

from saiserve import limits

SEQUENCES_MAX = 64
"""Running and idle sequences of a model whose cells are shared."""
BATCH_MAX = 512
"""Tokens of one batch."""
CELLS_DEFAULT = 16_384
"""KV cells of one engine unless set: a few long or many short conversations at once."""
CONTEXT_DEFAULT_MAX = 8_192
"""Context of one request unless set, if the model was trained for as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """A LoRA adapter that requests may name."""

    name: str
    path: str
    """A GGUF file of type adapter."""
    scale: float = 1.0
    """How strongly it is applied; 1 as trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of one engine process; None means measured or taken from the model."""

    model_path: str
    """A GGUF file."""
    model_id: str
    """Catalog id, as in requests."""
    context_tokens: int | None = None
    """Longest prompt and answer of one request together."""
    cells: int | None = None
    """KV cells shared by all requests; at least `context_tokens`."""
    lanes: int | None = None
    """Streams at once; None: measured, see `speed_floor`."""
    speed_floor: float | None = None
    """Share of the solo speed that each of several streams keeps, in (0, 1]; None: half, but four lanes at least."""
    threads: int | None = None
    kv_type: str = "f16"
    """f32, f16, q8_0 or q4_0."""
    chat_template: str | None = None
    """Jinja text for files without one, or instead of theirs."""
    gpu_layers: int = 0
    mmap: bool | None = None
    """Map the file, or read it; None: see `placement.is_mapped`."""
    mlock: bool = False
    cache_bytes: int = 512 * 1024 * 1024
    """Host memory for prefixes that are not in the KV cache."""
    window_full: bool = True
    """Sliding-window models: keep all cells, so that conversations can branch back. False: each layer with a window keeps
    little more than that, prefixes are taken up again where a message ends, and fewer sequences are held."""
    queue_max: int = limits.ENGINE_QUEUE_MAX
    speculate: bool = False
    """A stream alone guesses its next tokens from what was said before, and computes several at once."""
    flash_attention: bool = True
    """False: scores as matrices, whose memory is in the estimate; a quantised cache cannot have it (decision 0159)."""
    reencode: bool = True
    """Weights of types that llama.cpp multiplies slowly are turned into Q8_0 where that is faster (reencoding.py)."""
    gpu_devices: tuple[str, ...] = ()
    """llama.cpp's names of the devices to use; empty: all."""
    gpu_split: str = "layer"
    """How several devices share the model: none, layer or row."""
    tensor_split: tuple[float, ...] = ()
    """Share of each device; empty: by their free memory."""
    numa: str = "off"
    """off, distribute, isolate or numactl."""
    mmproj_path: str = ""
    """A GGUF file with the projector that lets the model see images; empty: it does not."""
    adapters: tuple[AdapterSettings, ...] = ()
    """Served as models of their own, `model_id:name`, on the same weights."""
