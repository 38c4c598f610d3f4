"""Very many tokens as runs of bytes: the same ids and pieces, and bytes that every machine reads alike."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saiserve.engines.messages import Counted
from saiserve.engines.packed import ids_bytes, ids_of, pack, runs_of, spelled


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=9)), max_size=50), st.integers(1, 20))
def test_what_is_packed_comes_out_again(tokens: list[tuple[int, bytes]], size: int) -> None:
    ids, pieces = tuple(one for one, _ in tokens), tuple(piece for _, piece in tokens)
    plain, packed = Counted("c", len(ids), ids=ids, pieces=pieces), Counted("c", len(ids), packed=pack(ids, pieces))
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=Counted)
    for counted in (plain, packed):
        assert tuple(ids_of(counted) or ()) == ids
        assert spelled(counted) == b"".join(pieces)
        runs = list(runs_of(counted, size))
        assert all(0 < len(run) <= size for run, _ in runs)
        assert [pair for run in runs for pair in zip(*run, strict=True)] == tokens


def test_ids_are_little_endian() -> None:
    ids = (1, 256, 2**31 - 1)
    assert ids_bytes(ids) == struct.pack("<3i", *ids)
    with pytest.raises(OverflowError):
        ids_bytes((2**31,))


def test_an_upstream_knows_no_ids() -> None:
    assert ids_of(Counted("c", 7)) is None
    assert list(runs_of(Counted("c", 7), 5)) == []
