"""What a node says of itself: slow facts and quick vitals, each small enough to ride in membership packets.

Both are owner-authored and replaced as a whole, never merged. Decoders are total: any bytes give a value or one
`FactsError`. Layout and limits: docs/routing.md, Facts and vitals.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, TypeVar

import msgspec

from saiserve.limits import FACTS_BYTES_MAX, METADATA_BYTES_MAX, VITALS_BYTES_MAX

PROTOCOL_VERSION = 1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Small = Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class FactsError(Exception):
    """Bytes another node sent are not facts or vitals of this protocol; nothing was changed."""


class ModelState(enum.IntEnum):
    """What a node can do with a model right now."""

    READY = 0
    LOADING = 1
    DRAINING = 2
    LOADABLE = 3
    """Not resident, but it can load it."""
    FAILED = 4
    """It could not be loaded a short while ago."""


CAPABILITIES = ("chat", "vision", "tools", "embeddings", "schema", "reasoning", "rerank", "audio")
"""Capability tags by bit number; append at the end only. Bits beyond are ignored by older nodes."""


class ModelFact(msgspec.Struct, frozen=True, array_like=True):
    """One model of a node. `digest` is eight bytes over file and template; equal digests may continue each other."""

    id: Name
    digest: Annotated[bytes, msgspec.Meta(max_length=8)] = b""
    state: ModelState = ModelState.READY
    context: Count = 0
    """Context of one request in tokens, 0 = unknown."""
    capability_bits: Count = 0
    lanes: Small = 0
    """Lanes this model declares; 0: the node's `lanes` hold."""
    waits: bool = False
    """It is being loaded and requests may come: they wait for it there."""
    template_ways: Count = 0
    """What its chat template tells of its output: `saiserve.chat.template_ways.TemplateWays.number`; 0 = unknown."""

    @property
    def tags(self) -> frozenset[str]:
        """Capabilities by name."""
        return frozenset(tag for bit, tag in enumerate(CAPABILITIES) if self.capability_bits >> bit & 1)


class NodeFacts(msgspec.Struct, frozen=True, array_like=True):
    """A node's metadata. The order of `models` numbers the slots of its vitals."""

    protocol: Small = PROTOCOL_VERSION
    version: Count = 0
    """Rises with each change; the same in the full form."""
    advertise: Annotated[str, msgspec.Meta(max_length=270)] = ""
    lanes: Small = 1
    """Declared lanes of the node; the weight of its share of conversations."""
    key_ids: Annotated[tuple[Annotated[bytes, msgspec.Meta(max_length=16)], ...], msgspec.Meta(max_length=8)] = ()
    draining: bool = False
    no_engine: bool = False
    truncated: bool = False
    """Models are missing here: fetch the full form by `GET /cluster/facts`."""
    models: Annotated[tuple[ModelFact, ...], msgspec.Meta(max_length=4096)] = ()


class SlotVitals(msgspec.Struct, frozen=True, array_like=True):
    """Load of one model, at the same place as in `NodeFacts.models`."""

    lanes: Small = 0
    busy: Small = 0
    """Lanes in use."""
    queued: Small = 0
    """Requests waiting."""
    queued_tokens: Count = 0
    """Prompt tokens not yet prefilled."""
    prefill_rate: Count = 0
    """Tokens per second."""
    decode_rate_x10: Count = 0
    """Tenths of tokens per second of one stream alone."""


class NodeVitals(msgspec.Struct, frozen=True, array_like=True):
    """A node's load at one moment; latest wins by `counter`."""

    counter: Count = 0
    facts_version: Count = 0
    """The facts whose model order numbers `slots`."""
    cpu_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """Of all cores together."""
    ram_used_mib: Count = 0
    ram_total_mib: Count = 0
    loop_lag_ms: Small = 0
    """Worst recent delay of the node's event loop."""
    slots: Annotated[tuple[SlotVitals, ...], msgspec.Meta(max_length=64)] = ()
    """Resident models only, and only as many as fit; the rest is learnt from replies."""


T = TypeVar("T", NodeFacts, NodeVitals)
Item = TypeVar("Item", ModelFact, SlotVitals)


def capability_bits(tags: Iterable[str]) -> int:
    """The bits of known capability tags; unknown tags are left out."""
    wanted = set(tags)
    return sum(1 << bit for bit, tag in enumerate(CAPABILITIES) if tag in wanted)


def encode_metadata(facts: NodeFacts) -> bytes:
    """Facts in at most 512 bytes. Models that do not fit are left out, last first, and `truncated` is set.

    Put what is resident first. Raises ValueError when not even the facts without models fit.
    """
    fits = _longest(facts.models, lambda models: _with_models(facts, models), METADATA_BYTES_MAX)
    if fits is None:
        raise ValueError("advertise address and key ids alone exceed 512 bytes of metadata")
    return fits


def encode_vitals(vitals: NodeVitals) -> bytes:
    """Vitals in at most 128 bytes; slots that do not fit are left out, last first."""
    fits = _longest(
        vitals.slots,
        lambda slots: msgspec.msgpack.encode(msgspec.structs.replace(vitals, slots=tuple(slots))),
        VITALS_BYTES_MAX,
    )
    assert fits is not None, "numbers of bounded size fit"
    return fits


def encode_full(facts: NodeFacts) -> bytes:
    """Facts whole, for `GET /cluster/facts`."""
    return msgspec.msgpack.encode(msgspec.structs.replace(facts, truncated=False))


def decode_metadata(data: bytes) -> NodeFacts:
    """Facts from metadata; raises FactsError for anything else."""
    return _decode(data, NodeFacts, METADATA_BYTES_MAX, "metadata")


def decode_full(data: bytes) -> NodeFacts:
    """Facts from `GET /cluster/facts`; raises FactsError for anything else."""
    return _decode(data, NodeFacts, FACTS_BYTES_MAX, "facts")


def decode_vitals(data: bytes) -> NodeVitals:
    """Vitals; raises FactsError for anything else."""
    return _decode(data, NodeVitals, VITALS_BYTES_MAX, "vitals")


def _decode(data: bytes, kind: type[T], limit: int, what: str) -> T:
    if len(data) > limit:
        raise FactsError(f"{what}: {len(data)} bytes, at most {limit} allowed")
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise FactsError(f"{what}: not of this protocol: {error}") from error


def _with_models(facts: NodeFacts, models: Sequence[ModelFact]) -> bytes:
    truncated = facts.truncated or len(models) < len(facts.models)
    return msgspec.msgpack.encode(msgspec.structs.replace(facts, models=tuple(models), truncated=truncated))


def _longest(items: Sequence[Item], encode: Callable[[Sequence[Item]], bytes], limit: int) -> bytes | None:
    """The encoding of the longest head of `items` within `limit` bytes; None when even the empty one is over."""
    for count in range(len(items), -1, -1):
        data = encode(items[:count])
        if len(data) <= limit:
            return data
    return None
