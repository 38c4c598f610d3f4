"""Facts and vitals over all inputs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saiserve.fleet.facts import (
    FactsError,
    ModelFact,
    ModelState,
    NodeFacts,
    NodeVitals,
    SlotVitals,
    decode_full,
    decode_metadata,
    decode_vitals,
    encode_full,
    encode_metadata,
    encode_vitals,
)
from saiserve.limits import METADATA_BYTES_MAX, VITALS_BYTES_MAX

small, count = st.integers(0, 2**16 - 1), st.integers(0, 2**53)
models = st.builds(
    ModelFact,
    st.text(min_size=1, max_size=60),
    st.binary(max_size=8),
    st.sampled_from(ModelState),
    count,
    count,
    small,
    st.booleans(),
    count,
)
facts = st.builds(
    NodeFacts,
    small,
    count,
    st.text(max_size=60),
    small,
    st.lists(st.binary(max_size=16), max_size=8).map(tuple),
    st.booleans(),
    st.booleans(),
    st.just(False),
    st.lists(models, max_size=20).map(tuple),
)
slots = st.builds(SlotVitals, small, small, small, count, count, count)
vitals = st.builds(
    NodeVitals, count, count, st.integers(0, 100), count, count, small, st.lists(slots, max_size=20).map(tuple)
)


@given(facts)
def test_facts_come_back_whole_or_marked_as_cut(value: NodeFacts) -> None:
    assert decode_full(encode_full(value)) == value
    try:
        data = encode_metadata(value)
    except ValueError:
        return
    back = decode_metadata(data)
    assert len(data) <= METADATA_BYTES_MAX
    assert back.models == value.models[: len(back.models)]
    assert back.truncated == (len(back.models) < len(value.models))
    assert (back.version, back.advertise, back.key_ids) == (value.version, value.advertise, value.key_ids)


@given(vitals)
def test_vitals_come_back_with_the_slots_that_fit(value: NodeVitals) -> None:
    data = encode_vitals(value)
    back = decode_vitals(data)
    assert len(data) <= VITALS_BYTES_MAX
    assert back.slots == value.slots[: len(back.slots)]
    assert (back.counter, back.cpu_percent, back.loop_lag_ms) == (value.counter, value.cpu_percent, value.loop_lag_ms)


@given(st.binary(max_size=600))
def test_any_bytes_give_a_value_or_the_one_error(data: bytes) -> None:
    for decode in (decode_metadata, decode_full, decode_vitals):
        try:
            decode(data)
        except FactsError:
            continue


@given(facts, st.data())
def test_damaged_facts_give_a_value_or_the_one_error(value: NodeFacts, data: st.DataObject) -> None:
    good = bytearray(encode_full(value))
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] = data.draw(st.integers(0, 255))
    for damaged in (bytes(good), bytes(good[:place])):
        try:
            decode_full(damaged)
        except FactsError:
            continue


def test_a_deeply_nested_extra_field_is_the_one_error_or_ignored() -> None:
    nested = b"\x9a" + b"\x01\x00\xa0\x01\x90\xc2\xc2\xc2\x90" + b"\x91" * 400 + b"\xc0"
    try:
        decode_metadata(nested)
    except FactsError:
        return
    with pytest.raises(FactsError):
        decode_full(b"\x9a" + b"\x01\x00\xa0\x01\x90\xc2\xc2\xc2\x90" + b"\x91" * 900_000 + b"\xc0")
