"""From settings to a ready worker for a model that makes vectors or ranks."""

from __future__ import annotations

from saiserve.engines.llamacpp.gguf_file import ModelFile
from saiserve.engines.llamacpp.prompting import PromptReader
from saiserve.engines.llamacpp.protocol import ModelFacts
from saiserve.engines.llamacpp.purpose import POOLING_USUAL, Purpose, is_encoder, pooling_of, purpose_of
from saiserve.engines.llamacpp.vector_context import VectorContext, VectorSettings
from saiserve.engines.llamacpp.vector_inputs import VectorInputs
from saiserve.engines.llamacpp.vector_worker import VectorWorker
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.llamacpp.weights import LlamaModel

ENCODER_TOKENS_MAX = 2_048
"""Longest input of an encoder unless the context is set: it is one batch, and its buffers grow with the square."""
MEASURED_TOKENS = 64
RANK_TEMPLATE_KEY = "tokenizer.chat_template.rerank"


def input_tokens_max(file: ModelFile, context_tokens: int, *, is_set: bool) -> int:
    """Longest input: as the node has it, but never beyond an encoder's trained positions, which are a table."""
    if not is_encoder(file):
        return context_tokens
    trained = file.value("context_length")
    most = trained if isinstance(trained, int) and trained > 0 else ENCODER_TOKENS_MAX
    return min(most, context_tokens if is_set else min(context_tokens, ENCODER_TOKENS_MAX))


def open_vector_worker(
    model: LlamaModel, file: ModelFile, *, tokens_max: int, threads: int, flash_attention: bool
) -> tuple[VectorWorker, ModelFacts]:
    """Make the context of a loaded model and measure it.

    Raises:
        LoadError: llama.cpp could not make the context, or the model cannot compute.
    """
    vocabulary = Vocabulary(model.vocab)
    ranks = purpose_of(file) is Purpose.RANK
    settings = VectorSettings(
        tokens_max=tokens_max,
        threads=threads,
        is_encoder=is_encoder(file),
        ranks=ranks,
        flash_attention=flash_attention,
    )
    context = VectorContext(model, settings)
    template = file.metadata.get(RANK_TEMPLATE_KEY)
    inputs = VectorInputs(
        vocabulary,
        pooling=pooling_of(file) or POOLING_USUAL,
        size=context.size,
        tokens_max=tokens_max,
        rank_template=template if isinstance(template, str) else "",
    )
    worker = VectorWorker(context=context, vocabulary=vocabulary, reader=PromptReader(vocabulary, None), inputs=inputs)
    worker.rate = context.measure(min(MEASURED_TOKENS, context.rows_max))
    return worker, ModelFacts(
        architecture=file.architecture,
        family="encoder" if settings.is_encoder else "full",
        parameters=model.parameters,
        vocabulary_size=vocabulary.size,
        context_tokens=tokens_max,
        context_trained=model.context_trained,
        cells=0,
        lanes=1,
        threads=threads,
        embedding_size=context.size,
        window=model.window,
        prefill_rate=worker.rate,
        decode_rate=0.0,
    )
