"""What a model file is for, by its own words: to generate, to make vectors, to rank documents. Pure."""

from __future__ import annotations

import enum

from saiserve.engines.llamacpp.gguf_file import ModelFile

POOLINGS = ("mean", "cls", "last", "none")
"""How token vectors become the input's vector(s); `none` keeps one per token."""
POOLING_NUMBERS = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
"""llama_pooling_type as `{architecture}.pooling_type` holds it."""
POOLING_USUAL = "mean"
"""For models that say nothing."""

ENCODERS = frozenset(
    {
        "bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert", "modern-bert",
        "gemma-embedding", "t5encoder",
    }
)  # fmt: skip
"""Architectures that keep no cache, so that a whole input is computed at once."""


class Purpose(enum.StrEnum):
    """What a model is asked for."""

    GENERATE = "generate"
    EMBED = "embed"
    RANK = "rank"


CAPABILITIES = {
    Purpose.EMBED: frozenset({"embeddings"}),
    Purpose.RANK: frozenset({"rerank"}),
}
"""What clients and routing are told; generating models are described by the catalog."""


def pooling_of(file: ModelFile) -> str:
    """The pooling a file names for itself; empty when it names none."""
    number = file.value("pooling_type")
    name = POOLING_NUMBERS.get(number, "") if isinstance(number, int) else ""
    return "" if name == "none" else name


def is_encoder(file: ModelFile) -> bool:
    """Whether every token of an input sees every other, later ones too."""
    return file.architecture in ENCODERS or file.value("attention.causal") is False


def purpose_of(file: ModelFile) -> Purpose:
    """A model that names a pooling was trained for vectors, one with the pooling `rank` for ranks."""
    pooling = pooling_of(file)
    if pooling == "rank":
        return Purpose.RANK
    return Purpose.EMBED if pooling or is_encoder(file) else Purpose.GENERATE


def capabilities_of(file: ModelFile, configured: frozenset[str]) -> frozenset[str]:
    """Capability tags of a model: the file's purpose outranks what the catalog assumes."""
    return CAPABILITIES.get(purpose_of(file), configured)
