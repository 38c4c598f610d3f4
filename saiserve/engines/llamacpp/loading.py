"""From settings to a ready worker: file check, memory check, weights, context, template, measurement."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil

from saiserve.engines.llamacpp.adapters import Adapters
from saiserve.engines.llamacpp.binding import ContextSettings, LlamaContext
from saiserve.engines.llamacpp.constraint import ConstraintCompiler
from saiserve.engines.llamacpp.cores import threads_for
from saiserve.engines.llamacpp.estimate import MemoryEstimate, estimate_memory, gigabytes, may_reencode, sizes
from saiserve.engines.llamacpp.gguf_file import ModelFile, ModelFileError, read_model_file
from saiserve.engines.llamacpp.kv import Family
from saiserve.engines.llamacpp.lanes import CELLS_PER_LANE_MIN, SPEED_FLOOR, lanes_for
from saiserve.engines.llamacpp.placement import is_mapped
from saiserve.engines.llamacpp.probe import Speeds, lone_step_s, measure
from saiserve.engines.llamacpp.prompt_ends import PromptEnds
from saiserve.engines.llamacpp.prompting import PromptReader
from saiserve.engines.llamacpp.protocol import EngineLoadError, ModelFacts
from saiserve.engines.llamacpp.purpose import POOLING_USUAL, Purpose, purpose_of
from saiserve.engines.llamacpp.reencoding import faster_of
from saiserve.engines.llamacpp.scheduler import Scheduler, SchedulerConfig
from saiserve.engines.llamacpp.settings import BATCH_MAX, SEQUENCES_MAX, EngineSettings
from saiserve.engines.llamacpp.template import ChatTemplate, TemplateError
from saiserve.engines.llamacpp.threads import ThreadChooser
from saiserve.engines.llamacpp.vector_inputs import VectorInputs
from saiserve.engines.llamacpp.vector_loading import input_tokens_max, open_vector_worker
from saiserve.engines.llamacpp.vector_worker import VectorWorker
from saiserve.engines.llamacpp.vision import ImageReader
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.llamacpp.weights import LlamaModel, LoadError
from saiserve.engines.llamacpp.window import sequences_for
from saiserve.engines.llamacpp.worker import Worker

SEQUENCES_MAX_RECURRENT = 16
"""Recurrent state is reserved for each sequence, so there are fewer."""
PARK_AFTER_S = 0.5
"""Idle prefixes leave the KV cache after so long on a CPU, where every cell is looked at by every stream's step."""
LANES_MIN = 4
"""Fewer would make a measurement beside busy neighbours last for the engine's life."""
LONGEST_STEP_S = 8.0
"""On slow machines the batch shrinks to what takes this long, so that cancels and heartbeats come through."""
BATCH_MIN = 128
"""However slow it was while it was measured: shorter pieces cost much of the prefill's speed."""
MEMORY_SPARE = 0.05
"""Share of the machine's memory that stays free."""


def load_worker(
    settings: EngineSettings,
    *,
    on_progress: Callable[[float], None] = lambda _fraction: None,
    on_ready: Callable[[], None] = lambda: None,
) -> tuple[Worker | VectorWorker, ModelFacts]:
    """Load a model and measure it.

    Raises:
        EngineLoadError: file, memory or template at fault; nothing is left behind.
    """
    path = Path(settings.model_path)
    try:
        file = read_model_file(path)
        settings = replace(settings, mmap=is_mapped(file, settings))
        context_tokens, cells = sizes(file, settings)
        _check_memory(estimate_memory(file, settings))
        model = LlamaModel(path, settings, on_progress=on_progress)
        if purpose_of(file) is not Purpose.GENERATE:
            return open_vector_worker(
                model,
                file,
                tokens_max=input_tokens_max(file, context_tokens, is_set=settings.context_tokens is not None),
                threads=threads_for(settings.threads),
                flash_attention=settings.flash_attention,
            )
        reencoding = ""
        if may_reencode(file, settings):
            model, reencoding = faster_of(model, settings, on_progress=on_progress)
        adapters = Adapters(model, settings.model_id, settings.adapters)
        images = _image_reader(model, settings)
        context = _open_context(model, file, cells, settings)
        _let_see(context, images)
        vocabulary = Vocabulary(model.vocab)
        template = _template(file, settings, vocabulary)
    except ModelFileError as error:
        raise EngineLoadError(str(error)) from error
    except (LoadError, TemplateError, ValueError) as error:
        raise EngineLoadError(f"{path} cannot be served: {error}") from error
    opened = _Opened(file, model, context, vocabulary, template, images, adapters, context_tokens, reencoding)
    return _measured(opened, settings, on_ready)


class _Opened(NamedTuple):
    """A generating model, loaded and not yet measured."""

    file: ModelFile
    model: LlamaModel
    context: LlamaContext
    vocabulary: Vocabulary
    template: ChatTemplate | None
    images: ImageReader | None
    adapters: Adapters
    context_tokens: int
    reencoding: str


def _measured(opened: _Opened, settings: EngineSettings, on_ready: Callable[[], None]) -> tuple[Worker, ModelFacts]:
    """Find out how fast it is, and set up its worker accordingly."""
    context, vocabulary = opened.context, opened.vocabulary
    token, streams_max = max(vocabulary.special.bos, 0), context.sequences_max - 1
    threads = _choose_threads(context, settings, token)
    speeds = measure(context, token, streams_max=streams_max, speed_floor=settings.speed_floor or SPEED_FLOOR)
    if not math.isfinite(float(context.logits(0).max())):
        raise EngineLoadError(
            f"{settings.model_path} cannot be served: what it computes are not numbers; the file may be damaged, fetch it again"
        )
    compiler = ConstraintCompiler(vocabulary, opened.model.vocab)
    ends = PromptEnds()
    lanes = choose_lanes(
        settings.lanes, speeds.stream_rates, context.cells_total, streams_max, speed_floor=settings.speed_floor
    )
    worker = Worker(
        context=context,
        vocabulary=vocabulary,
        reader=PromptReader(vocabulary, opened.template, opened.images),
        vector_inputs=VectorInputs(
            vocabulary, pooling=POOLING_USUAL, size=opened.model.embedding_size, tokens_max=opened.context_tokens
        ),
        adapters=opened.adapters,
        compiler=compiler,
        scheduler=Scheduler(context, _scheduler_config(settings, context, speeds, lanes), ends),
        ends=ends,
        context_tokens=opened.context_tokens,
        threads=threads,
        on_ready=on_ready,
    )
    return worker, _facts(
        *(opened.file, opened.model, context, speeds),
        context_tokens=opened.context_tokens,
        lanes=lanes,
        threads=threads.threads,
        template_caps=opened.template.caps.as_flags() if opened.template is not None else {},
        reencoding=opened.reencoding,
    )


def _facts(
    file: ModelFile,
    model: LlamaModel,
    context: LlamaContext,
    speeds: Speeds,
    *,
    context_tokens: int,
    lanes: int,
    threads: int,
    template_caps: dict[str, bool],
    reencoding: str,
) -> ModelFacts:
    return ModelFacts(
        architecture=file.architecture,
        family=context.family.value,
        parameters=model.parameters,
        vocabulary_size=model.vocabulary_size,
        context_tokens=context_tokens,
        context_trained=model.context_trained,
        cells=context.cells_total,
        lanes=lanes,
        threads=threads,
        embedding_size=model.embedding_size,
        window=context.window,
        prefill_rate=speeds.prefill_rate,
        decode_rate=speeds.stream_rates[1],
        template_caps=template_caps,
        reencoding=reencoding,
    )


def _image_reader(model: LlamaModel, settings: EngineSettings) -> ImageReader | None:
    if not settings.mmproj_path:
        return None
    return ImageReader(
        model,
        Path(settings.mmproj_path),
        threads=threads_for(settings.threads),
        use_gpu=settings.gpu_layers != 0,
    )


def _let_see(context: LlamaContext, images: ImageReader | None) -> None:
    if images is None:
        return
    if context.family is Family.RECURRENT:
        raise LoadError("images in models with a recurrent state are not served")
    context.image_vector = images.runs.vector


def choose_lanes(
    asked: int | None,
    stream_rates: dict[int, float],
    cells_total: int,
    lanes_max: int,
    *,
    speed_floor: float | None = None,
) -> int:
    """Lanes as asked, else by the speed floor as asked, else by the usual one, but `LANES_MIN` where the cache has room."""
    if asked is not None:
        return max(1, min(asked, lanes_max))
    if speed_floor is not None:
        return lanes_for(stream_rates, cells_total=cells_total, lanes_max=lanes_max, speed_floor=speed_floor)
    roomy = max(1, min(LANES_MIN, cells_total // CELLS_PER_LANE_MIN, lanes_max))
    return max(roomy, lanes_for(stream_rates, cells_total=cells_total, lanes_max=lanes_max))


def _choose_threads(context: LlamaContext, settings: EngineSettings, token: int) -> ThreadChooser:
    """A chooser that starts from what is fastest now; fixed when the operator said how many."""
    most = threads_for(settings.threads)
    if settings.threads is not None or most == 1:
        return ThreadChooser(most, fixed=True)
    step_s: dict[int, float] = {}
    threads = most
    while threads >= 1:
        context.use_threads(threads)
        step_s[threads] = lone_step_s(context, token)
        threads //= 2
    chooser = ThreadChooser(most, step_s)
    context.use_threads(chooser.threads)
    return chooser


def _check_memory(estimate: MemoryEstimate) -> None:
    """Other programs may have taken what the node's budget allows; parked prefixes come later, if at all."""
    needed = replace(estimate, cache=0)
    memory = psutil.virtual_memory()
    free = memory.available - int(memory.total * MEMORY_SPARE)
    if needed.total > free:
        raise LoadError(
            f"it needs {needed.describe()} and {gigabytes(max(0, free))} GB are free on this machine: "
            "fewer cells, a smaller model or kv_type q8_0"
        )


def _open_context(model: LlamaModel, file: ModelFile, cells: int, settings: EngineSettings) -> LlamaContext:
    sequences = SEQUENCES_MAX_RECURRENT if model.is_recurrent else sequences_for(file, settings)
    return LlamaContext(
        model,
        ContextSettings(
            cells=cells,
            sequences_max=sequences,
            batch_max=min(BATCH_MAX, cells),
            outputs_max=SEQUENCES_MAX,
            threads=threads_for(settings.threads),
            kv_type=settings.kv_type,
            window_full=settings.window_full,
            flash_attention=settings.flash_attention,
        ),
    )


def _template(file: ModelFile, settings: EngineSettings, vocabulary: Vocabulary) -> ChatTemplate | None:
    source = settings.chat_template or file.chat_template
    if not source:
        return None
    special = vocabulary.special
    return ChatTemplate(
        source, bos=vocabulary.text_of(special.bos), eos=vocabulary.text_of(special.eos), markers=vocabulary.markers
    )


def _scheduler_config(settings: EngineSettings, context: LlamaContext, speeds: Speeds, lanes: int) -> SchedulerConfig:
    affordable = int(speeds.prefill_rate * LONGEST_STEP_S)
    return SchedulerConfig(
        lanes=lanes,
        batch_max=min(context.batch_max, max(BATCH_MIN, affordable)),
        queue_max=settings.queue_max,
        apart=settings.flash_attention and settings.gpu_layers == 0,
        host_bytes_max=settings.cache_bytes,
        prefill_rate=speeds.prefill_rate,
        decode_rate=speeds.stream_rates[1],
        pins=context.family is Family.WINDOW and settings.window_full,
        speculates=settings.speculate,
        park_after_s=None if settings.gpu_layers else PARK_AFTER_S,
    )
