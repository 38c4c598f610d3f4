"""The fields of OpenAI-shaped bodies that say how tokens are drawn, their ranges, and what they become.

Fields a client leaves out take llama-server's values where the public APIs leave the choice to the server: small local
models need a truncated tail (docs/decisions/0080-sampling-defaults.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from saiserve import limits
from saiserve.api.bias import LogitBias, bias_pairs, id_pairs, text_pairs
from saiserve.api.body import invalid
from saiserve.api.gbnf import lark_of
from saiserve.engines.messages import Constraint, Sampling

V = TypeVar("V", int, float)

FAULT_CHARACTERS_MAX = 300
"""Of what is wrong with a grammar: it repeats names, which may be long."""

Temperature = Annotated[float, Meta(ge=0, le=2)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How hard to think, in the words of the public API."""
Verbosity = Literal["low", "medium", "high"]
"""How much to say, in the words of the public API."""
Count = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Choices = Annotated[int, Meta(ge=1, extra_json_schema={"maximum": limits.CHOICES_MAX})]
"""How many answers to one prompt; `choices_of` names the limit, which is ours."""
SAMPLERS_MAX = 64

TOP_K_DEFAULT = 40
TOP_P_DEFAULT = 0.95
MIN_P_DEFAULT = 0.05
TEMPERATURE_DEFAULT = 0.8


class AdapterScale(msgspec.Struct):
    """One LoRA adapter, by its place in the model's setting, and how strongly it is applied."""

    id: int
    scale: Annotated[float, Meta(ge=-100, le=100)] = 0.0


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields shared by the OpenAI-shaped bodies, llama.cpp's extras included."""

    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: Count | None = None
    min_p: Fraction | None = None
    typical_p: Fraction = 1.0
    repeat_penalty: Annotated[float, Meta(gt=0, le=10)] = 1.0
    repeat_last_n: Count = 64
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    seed: int | None = None
    logit_bias: LogitBias | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    dry_multiplier: Annotated[float, Meta(ge=0, le=100)] = 0.0
    dry_base: Annotated[float, Meta(ge=0, le=100)] = 1.75
    dry_allowed_length: Annotated[int, Meta(ge=0, le=10_000)] = 2
    dry_penalty_last_n: Count = -1
    dry_sequence_breakers: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=64)] | None = None
    xtc_probability: Fraction = 0.0
    xtc_threshold: Fraction = 0.1
    mirostat: Annotated[int, Meta(ge=0, le=2)] = 0
    mirostat_tau: Annotated[float, Meta(ge=0, le=100)] = 5.0
    mirostat_eta: Annotated[float, Meta(ge=0, le=1)] = 0.1
    grammar: Annotated[str, Meta(max_length=262_144)] | None = None
    json_schema: dict[str, Any] | None = None
    n_probs: Annotated[int, Meta(ge=0, le=20)] | None = None
    cache_prompt: bool = True
    lora: Annotated[list[AdapterScale], Meta(max_length=64)] | None = None
    samplers: (
        Annotated[str, Meta(max_length=SAMPLERS_MAX)] | Annotated[list[str], Meta(max_length=SAMPLERS_MAX)] | None
    ) = None
    id_slot: Count = -1
    return_tokens: bool = False
    sse_ping_interval: Count = -1


def sampling_of(
    fields: SamplingFields, draw_seed: Callable[[], int], logprobs: int | None, *, text_bias: bool = False
) -> Sampling:
    """Return how the next token is drawn; a seed of −1, llama.cpp's "any", or none at all is drawn here.

    `text_bias`: whether `logit_bias` may name texts, which the handler turns into tokens.
    """
    bias = bias_pairs(fields.logit_bias)
    if not text_bias and (texts := text_pairs(bias)):
        raise invalid(f"logit_bias: {texts[0][0][:40]!r} is not a token id.", "logit_bias")
    if fields.seed is not None and not -(2**63) <= fields.seed < 2**64:
        raise invalid("seed: must fit in 64 bits.", "seed")
    seed = draw_seed() if fields.seed is None or fields.seed == -1 else fields.seed % 2**64
    defaults = Sampling(seed=seed)
    breakers = fields.dry_sequence_breakers
    return Sampling(
        seed=seed,
        temperature=_given(fields.temperature, TEMPERATURE_DEFAULT),
        top_k=max(0, _given(fields.top_k, TOP_K_DEFAULT)),
        top_p=_given(fields.top_p, TOP_P_DEFAULT),
        min_p=_given(fields.min_p, MIN_P_DEFAULT),
        typical_p=fields.typical_p,
        repeat_penalty=fields.repeat_penalty,
        repeat_last_n=fields.repeat_last_n,
        frequency_penalty=fields.frequency_penalty,
        presence_penalty=fields.presence_penalty,
        logit_bias=id_pairs(bias),
        logprobs=fields.n_probs if logprobs is None and fields.n_probs else logprobs,
        ignore_eos=fields.ignore_eos,
        dry_multiplier=fields.dry_multiplier,
        dry_base=fields.dry_base,
        dry_allowed_length=fields.dry_allowed_length,
        dry_penalty_last_n=fields.dry_penalty_last_n,
        dry_sequence_breakers=defaults.dry_sequence_breakers if breakers is None else tuple(breakers),
        xtc_probability=fields.xtc_probability,
        xtc_threshold=fields.xtc_threshold,
        mirostat=fields.mirostat,
        mirostat_tau=fields.mirostat_tau,
        mirostat_eta=fields.mirostat_eta,
        lora=None if fields.lora is None else tuple((one.id, one.scale) for one in fields.lora),
    )


def stop_of(given: str | list[str] | None, param: str = "stop") -> tuple[str, ...]:
    """Return the stop strings.

    Raises:
        ApiError: 400 for an empty string, too many, or one too long.
    """
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if len(stops) > limits.STOP_STRINGS_MAX:
        raise invalid(f"{param}: at most {limits.STOP_STRINGS_MAX} stop strings are taken.", param)
    for stop in stops:
        if not stop:
            raise invalid(f"{param}: a stop string must not be empty.", param)
        if len(stop.encode()) > limits.STOP_STRING_BYTES_MAX:
            raise invalid(f"{param}: a stop string has at most {limits.STOP_STRING_BYTES_MAX} bytes.", param)
    return tuple(dict.fromkeys(stops))


def choices_of(given: int, param: str = "n") -> int:
    """Return how many answers are made.

    Raises:
        ApiError: 400 beyond `CHOICES_MAX`.
    """
    if given > limits.CHOICES_MAX:
        raise invalid(
            f"{param}: at most {limits.CHOICES_MAX} answers are made for one request here (CHOICES_MAX).", param
        )
    return given


def max_tokens_of(given: int | None, param: str) -> int | None:
    """Return the limit on the answer; −1, llama.cpp's "no limit", is none.

    Raises:
        ApiError: 400 for zero.
    """
    if given == 0:
        raise invalid(f"{param}: must be at least 1.", param)
    return None if given == -1 else given


def grammar_constraint(fields: SamplingFields) -> Constraint | None:
    """Return the constraint of llama.cpp's `grammar` (GBNF) or `json_schema`.

    Raises:
        ApiError: 400 when both are given or the grammar cannot be read.
    """
    if fields.grammar and fields.json_schema is not None:
        raise invalid("grammar: give either grammar or json_schema.", "grammar")
    if fields.json_schema is not None:
        return schema_constraint(fields.json_schema)
    if not fields.grammar:
        return None
    try:
        return Constraint("lark", lark_of(fields.grammar))
    except Exception as error:
        raise invalid(f"grammar: it cannot be read: {str(error)[:FAULT_CHARACTERS_MAX]}", "grammar") from error


def schema_constraint(schema: dict[str, Any]) -> Constraint:
    """Return the constraint for a JSON Schema."""
    return Constraint("json_schema", msgspec.json.encode(schema).decode())


def _given(value: V | None, otherwise: V) -> V:
    return otherwise if value is None else value
