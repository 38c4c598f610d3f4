"""LoRA adapters of one model by name: `base:adapter` in a request, other weights on the same context."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saiserve.engines.llamacpp.binding import LlamaContext, LlamaModel, LoadError
from saiserve.engines.llamacpp.gguf_file import ModelFile, read_model_file
from saiserve.engines.llamacpp.prompting import PromptRefusal
from saiserve.engines.llamacpp.settings import AdapterSettings
from saiserve.engines.messages import RefusalReason

SEPARATOR = ":"
"""Between a model's id and an adapter's name."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A loaded adapter and how strongly it is applied."""

    handle: Any
    scale: float


class Adapters:
    """The adapters of one loaded model. Load them before its context is made, which reserves room for them."""

    def __init__(self, model: LlamaModel, model_id: str, wanted: Iterable[AdapterSettings]) -> None:
        """Load.

        Raises:
            ModelFileError: a file is damaged.
            LoadError: a file is no adapter, or one of another model.
        """
        self._prefix = model_id + SEPARATOR
        self._loaded: dict[str, Adapter] = {}
        for one in wanted:
            file = read_model_file(Path(one.path))
            check_adapter(file, model.architecture)
            self._loaded[one.name] = Adapter(model.load_adapter(Path(one.path)), one.scale)

    def name_in(self, model: str) -> str:
        """The adapter that a request's model names; empty for the model itself.

        Raises:
            PromptRefusal: no such adapter is here.
        """
        name = model.removeprefix(self._prefix) if model.startswith(self._prefix) else ""
        if name and name not in self._loaded:
            raise PromptRefusal(RefusalReason.NO_MODEL, f"the model has no adapter {name!r} here")
        return name

    def apply(self, context: LlamaContext, name: str) -> None:
        """Compute with this adapter, or with none, from the next batch on."""
        adapter = self._loaded.get(name)
        context.use_adapter(adapter.handle if adapter else None, adapter.scale if adapter else 0.0)


def check_adapter(file: ModelFile, architecture: str) -> None:
    """Raise LoadError unless the file is a LoRA adapter for models of this architecture."""
    kind = (file.metadata.get("general.type"), file.metadata.get("adapter.type"))
    if kind != ("adapter", "lora"):
        raise LoadError(f"{file.path} is no LoRA adapter")
    if file.architecture != architecture:
        raise LoadError(f"the adapter {file.path} is for {file.architecture} models, this one is {architecture}")
