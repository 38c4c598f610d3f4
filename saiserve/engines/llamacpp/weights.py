"""Weights and vocabulary of a GGUF file as llama.cpp has loaded them, and adapters to them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp

from saiserve.engines.llamacpp import native
from saiserve.engines.llamacpp.native import failure_reason
from saiserve.engines.llamacpp.placement import place, spread_over_nodes
from saiserve.engines.llamacpp.settings import EngineSettings

METADATA_BYTES_MAX = 256
"""Of a value asked of llama.cpp."""


class LoadError(Exception):
    """llama.cpp did not take the model or could not make a context; the message says which and what it logged."""


class LlamaModel:
    """Weights and vocabulary of one GGUF file."""

    def __init__(
        self,
        path: Path,
        settings: EngineSettings | None = None,
        *,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """Load a file already checked by `gguf_file.read_model_file`, to where `settings` say.

        Raises:
            LoadError: llama.cpp refused it.
            ValueError: a device is named that is not here.
        """
        native.start()
        settings = settings or EngineSettings(model_path=str(path), model_id="")
        spread_over_nodes(settings.numa)
        params = llama_cpp.llama_model_default_params()
        kept = place(params, settings)

        def progress(done: float, _data: object) -> bool:
            if on_progress is not None:
                on_progress(done)
            return True

        callback = llama_cpp.llama_progress_callback(progress)
        params.progress_callback = callback
        handle = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        del kept
        if not handle:
            raise LoadError(f"llama.cpp did not take the model: {failure_reason()}")
        self.handle = handle
        self.vocab = llama_cpp.llama_model_get_vocab(handle)
        self.vocabulary_size = int(llama_cpp.llama_vocab_n_tokens(self.vocab))
        self.context_trained = int(llama_cpp.llama_model_n_ctx_train(handle))
        self.embedding_size = int(llama_cpp.llama_model_n_embd_out(handle))
        self.input_size = int(llama_cpp.llama_model_n_embd_inp(handle))
        self.window = int(llama_cpp.llama_model_n_swa(handle))
        self.is_recurrent = bool(llama_cpp.llama_model_is_recurrent(handle) or llama_cpp.llama_model_is_hybrid(handle))
        self.architecture = _metadata(handle, "general.architecture")
        self.has_decoder = bool(llama_cpp.llama_model_has_decoder(handle))
        self.parameters = int(llama_cpp.llama_model_n_params(handle))

    def load_adapter(self, path: Path) -> Any:
        """Load a LoRA adapter for this model; freed with it. Before contexts are made: they reserve room for it.

        Raises:
            LoadError: llama.cpp refused it.
        """
        handle = llama_cpp.llama_adapter_lora_init(self.handle, str(path).encode())
        if not handle:
            raise LoadError(f"llama.cpp did not take the adapter {path}: {failure_reason()}")
        return handle

    def close(self) -> None:
        """Free the weights; contexts first."""
        if self.handle is not None:
            llama_cpp.llama_model_free(self.handle)
            self.handle = None


def _metadata(model: llama_cpp.llama_model_p, key: str) -> str:
    buffer = ctypes.create_string_buffer(METADATA_BYTES_MAX)
    length = llama_cpp.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if length >= 0 else ""
