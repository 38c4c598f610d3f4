"""LoRA adapters of one model: by name, `base:adapter`, or by number and scale in a request; other weights, same context.

A mix of adapters is known by a word: the adapter's name when it is one as the operator set it, else numbers and scales.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saiserve.engines.llamacpp.binding import LlamaContext
from saiserve.engines.llamacpp.gguf_file import ModelFile, read_model_file
from saiserve.engines.llamacpp.prompting import PromptRefusal
from saiserve.engines.llamacpp.settings import AdapterSettings
from saiserve.engines.llamacpp.weights import LlamaModel, LoadError
from saiserve.engines.messages import RefusalReason

SEPARATOR = ":"
"""Between a model's id and an adapter's name."""
MIX = "@"
"""Begins the word for a mix; no adapter's name does."""


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

    def mix_of(self, model: str, scales: Sequence[tuple[int, float]] | None) -> str:
        """The mix that a request wants: `scales` by number, in the order of the setting, replace what its model names.

        Raises:
            PromptRefusal: no such adapter is here.
        """
        name = self.name_in(model)
        if scales is None:
            return name
        names = list(self._loaded)
        unknown = [number for number, _ in scales if not 0 <= number < len(names)]
        if unknown:
            raise PromptRefusal(
                RefusalReason.BAD_REQUEST, f"lora: no adapter {unknown[0]} here, the model has {len(names)}"
            )
        mix = {number: scale for number, scale in sorted(dict(scales).items()) if scale}
        if len(mix) == 1:
            ((number, scale),) = mix.items()
            if scale == self._loaded[names[number]].scale:
                return names[number]
        return MIX + ",".join(f"{number}={scale!r}" for number, scale in mix.items()) if mix else ""

    def apply(self, context: LlamaContext, mix: str) -> None:
        """Compute with this mix, empty for none, from the next batch on."""
        if not mix.startswith(MIX):
            one = self._loaded.get(mix)
            context.use_adapters(((one.handle, one.scale),) if one else ())
            return
        loaded = list(self._loaded.values())
        parts = (part.partition("=") for part in mix.removeprefix(MIX).split(","))
        context.use_adapters(tuple((loaded[int(number)].handle, float(scale)) for number, _, scale in parts))


def check_adapter(file: ModelFile, architecture: str) -> None:
    """Raise LoadError unless the file is a LoRA adapter for models of this architecture."""
    kind = (file.metadata.get("general.type"), file.metadata.get("adapter.type"))
    if kind != ("adapter", "lora"):
        raise LoadError(f"{file.path} is no LoRA adapter")
    if file.architecture != architecture:
        raise LoadError(f"the adapter {file.path} is for {file.architecture} models, this one is {architecture}")
