"""Facts and vitals: sizes, truncation, total decoders."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from saiserve.chat.template_ways import TemplateWays
from saiserve.fleet.facts import (
    CAPABILITIES,
    FactsError,
    ModelFact,
    ModelState,
    NodeFacts,
    NodeVitals,
    SlotVitals,
    capability_bits,
    decode_full,
    decode_metadata,
    decode_vitals,
    encode_full,
    encode_metadata,
    encode_vitals,
)
from saiserve.limits import METADATA_BYTES_MAX, VITALS_BYTES_MAX


def model(name: str) -> ModelFact:
    return ModelFact(name, b"12345678", ModelState.READY, 32_768, capability_bits({"chat", "tools"}), 8)


def test_a_usual_node_fits_whole() -> None:
    facts = NodeFacts(
        version=7,
        advertise="a-rather-long-host-name.internal.example:8081",
        lanes=16,
        key_ids=(b"12345678", b"87654321"),
        models=tuple(model(f"a-model-with-a-long-name-q4-{number}") for number in range(6)),
    )
    assert len(encode_metadata(facts)) <= METADATA_BYTES_MAX
    assert decode_metadata(encode_metadata(facts)) == facts


def test_what_does_not_fit_is_left_out_marked_and_whole_in_the_full_form() -> None:
    facts = NodeFacts(version=1, advertise="h:1", models=tuple(model(f"model-number-{n}") for n in range(100)))
    short = decode_metadata(encode_metadata(facts))
    assert short.truncated
    assert 5 < len(short.models) < 100
    assert short.models == facts.models[: len(short.models)]
    assert decode_full(encode_full(facts)) == facts


def test_facts_that_cannot_fit_are_the_callers_error() -> None:
    with pytest.raises(ValueError, match="512"):
        encode_metadata(NodeFacts(advertise="h" * 600))


def test_vitals_of_many_slots_keep_the_first_and_fit() -> None:
    slot = SlotVitals(64, 64, 300, 1_000_000, 12_000, 2_000)
    vitals = NodeVitals(2**32, 2**20, 100, 2**20, 2**21, 1_000, (slot,) * 20)
    data = encode_vitals(vitals)
    assert len(data) <= VITALS_BYTES_MAX
    assert 4 <= len(decode_vitals(data).slots) < 20


def test_capabilities_travel_as_bits_and_unknown_ones_are_ignored() -> None:
    assert ModelFact("m", capability_bits=capability_bits({"vision", "flying"}) | 1 << 60).tags == {"vision"}
    assert capability_bits(CAPABILITIES) == 2 ** len(CAPABILITIES) - 1


def test_fields_a_later_version_appends_are_ignored() -> None:
    plain = msgspec.msgpack.decode(encode_metadata(NodeFacts(version=3)))
    assert decode_metadata(msgspec.msgpack.encode([*plain, "news"])) == NodeFacts(version=3)


def test_a_model_of_an_earlier_version_says_nothing_of_its_template() -> None:
    told = replace(model("m"), template_ways=TemplateWays(True, "llama3").number)
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(told))
    assert msgspec.convert(fields, ModelFact) == told
    assert msgspec.convert(fields[:-1], ModelFact) == replace(told, template_ways=0)
    assert msgspec.convert([*fields, "news"], ModelFact) == told


def test_what_a_template_tells_takes_one_byte_of_a_model() -> None:
    bare, told = (
        encode_full(NodeFacts(models=(replace(model("m"), template_ways=number),)))
        for number in (0, TemplateWays(True, "json").number)
    )
    assert len(bare) == len(told)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"{}",
        b"\x91" * 512,
        b"\x91" * 511 + b"\x90",
        b"\xdd\xff\xff\xff\xff",
        b"\x91\xa1\xff",
        b"\x91\xcb" + b"\xff" * 8,
    ],
)
def test_bytes_that_are_nothing_raise_the_one_error(data: bytes) -> None:
    for decode in (decode_metadata, decode_full, decode_vitals):
        with pytest.raises(FactsError):
            decode(data)


def test_too_long_is_refused_before_reading() -> None:
    with pytest.raises(FactsError, match="at most 128"):
        decode_vitals(bytes(129))


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(FactsError):
        decode_vitals(msgspec.msgpack.encode([1, 1, 101]))
    with pytest.raises(FactsError):
        decode_vitals(msgspec.msgpack.encode([-1]))
