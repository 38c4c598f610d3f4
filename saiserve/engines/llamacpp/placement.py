"""Where a model's weights go: settings to llama.cpp's load parameters."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import llama_cpp
from llama_cpp import _ggml

from saiserve.engines.llamacpp.gguf_file import ModelFile
from saiserve.engines.llamacpp.settings import EngineSettings

SPLIT_MODES: Final = {
    "none": llama_cpp.LLAMA_SPLIT_MODE_NONE,
    "layer": llama_cpp.LLAMA_SPLIT_MODE_LAYER,
    "row": llama_cpp.LLAMA_SPLIT_MODE_ROW,
}
NUMA_STRATEGIES: Final = {
    "distribute": llama_cpp.GGML_NUMA_STRATEGY_DISTRIBUTE,
    "isolate": llama_cpp.GGML_NUMA_STRATEGY_ISOLATE,
    "numactl": llama_cpp.GGML_NUMA_STRATEGY_NUMACTL,
}

READ_BYTES_MAX: Final = 512 << 20
"""Of a file that is read unasked. A larger one stays shared with other processes, and is there at once."""


def is_mapped(file: ModelFile, settings: EngineSettings) -> bool:
    """Whether the weights' file is mapped; else it is read into memory, which lies in huge pages (decision 0166)."""
    if settings.mmap is not None:
        return settings.mmap
    return settings.gpu_layers != 0 or file.bytes_total > READ_BYTES_MAX


def place(params: Any, settings: EngineSettings) -> tuple[object, ...]:
    """Fill in load parameters; the objects returned must live until the model is loaded.

    Raises:
        ValueError: a device that this machine or this build of llama.cpp does not have.
    """
    params.n_gpu_layers = settings.gpu_layers if settings.gpu_layers >= 0 else 1 << 16
    params.load_mode = (llama_cpp.LLAMA_LOAD_MODE_MMAP if settings.mmap is not False else 0) | (
        llama_cpp.LLAMA_LOAD_MODE_MLOCK if settings.mlock else 0
    )
    params.split_mode = SPLIT_MODES[settings.gpu_split]
    kept: list[object] = []
    if settings.gpu_devices:
        devices = _devices(settings.gpu_devices)
        params.devices = ctypes.cast(devices, ctypes.c_void_p)
        kept.append(devices)
    if settings.tensor_split:
        room = llama_cpp.llama_max_devices()
        if len(settings.tensor_split) > room:
            raise ValueError(f"TENSOR_SPLIT names {len(settings.tensor_split)} devices, this build takes {room}")
        shares = (ctypes.c_float * room)(*settings.tensor_split)
        params.tensor_split = shares
        kept.append(shares)
    return tuple(kept)


def spread_over_nodes(numa: str) -> None:
    """Tell llama.cpp how to use the machine's NUMA nodes; once per process, before a model is loaded."""
    if numa != "off":
        llama_cpp.llama_numa_init(NUMA_STRATEGIES[numa])


def _devices(names: tuple[str, ...]) -> Any:
    """A null-terminated array of ggml's devices."""
    known = _known_devices()
    missing = [name for name in names if name not in known]
    if missing:
        there = ", ".join(known) or "none"
        raise ValueError(f"GPU_DEVICES names {', '.join(missing)}, and the devices here are: {there}")
    return (ctypes.c_void_p * (len(names) + 1))(*(known[name] for name in names), None)


def _known_devices() -> dict[str, int]:
    library = _ggml.libggml
    count, get, name_of = (
        library.ggml_backend_dev_count,
        library.ggml_backend_dev_get,
        library.ggml_backend_dev_name,
    )
    count.restype, get.restype, name_of.restype = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p
    get.argtypes, name_of.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    devices = [get(index) for index in range(count())]
    return {(name_of(device) or b"").decode(): device for device in devices}
