"""A snapshot comes back whole or not at all, and the disk can do nothing worse than forget."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from swimcluster.address import Address
from swimcluster.errors import DecodeError
from swimcluster.snapshot import (
    ADDRESSES_MAX,
    CHECKSUM_BYTES,
    MAGIC,
    KnownAddress,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    load_snapshot,
    store_snapshot,
)

known = st.builds(
    KnownAddress,
    st.text(max_size=255),
    st.builds(Address, st.from_regex(r"[a-z0-9.:-]{1,40}", fullmatch=True), st.integers(0, 65535)),
    st.booleans(),
)
snapshots = st.builds(Snapshot, st.integers(0, 2**64 - 1), st.lists(known, max_size=5).map(tuple))
SAMPLE = Snapshot(7, (KnownAddress("a", Address("10.0.0.1", 7946)), KnownAddress("b", Address("::1", 1), failed=True)))


@given(snapshots)
def test_what_is_written_is_what_is_read(snapshot: Snapshot) -> None:
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


def test_every_cut_and_every_flipped_byte_is_a_decode_error() -> None:
    data = encode_snapshot(SAMPLE)
    for place in range(len(data)):
        with pytest.raises(DecodeError):
            decode_snapshot(data[:place])
        with pytest.raises(DecodeError):
            decode_snapshot(data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :])


@given(st.binary(max_size=200))
def test_bytes_with_a_right_checksum_and_wrong_content_are_a_decode_error(body: bytes) -> None:
    try:
        decode_snapshot(MAGIC + blake3(body).digest(CHECKSUM_BYTES) + body)
    except DecodeError:
        return
    else:
        raise AssertionError(f"{body!r} was taken for a snapshot")


def test_more_addresses_than_are_kept_lose_the_last_ones() -> None:
    many = Snapshot(1, tuple(KnownAddress(f"m{n}", Address("h", 1)) for n in range(ADDRESSES_MAX + 5)))
    assert decode_snapshot(encode_snapshot(many)).addresses == many.addresses[:ADDRESSES_MAX]


def test_the_file_is_made_with_its_folder_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "a.snapshot"
    assert load_snapshot(path) == (Snapshot(), "")
    assert store_snapshot(path, SAMPLE) == ""
    assert load_snapshot(path) == (SAMPLE, "")
    assert [entry.name for entry in path.parent.iterdir()] == ["a.snapshot"]
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [b"", b"\0" * 500, encode_snapshot(SAMPLE)[:-1], b"x" * (5 * 1024 * 1024)])
def test_an_unreadable_file_is_empty_with_a_reason_and_can_be_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.snapshot"
    path.write_bytes(content)
    snapshot, fault = load_snapshot(path)
    assert snapshot == Snapshot()
    assert str(path) in fault
    assert store_snapshot(path, SAMPLE) == ""
    assert load_snapshot(path) == (SAMPLE, "")


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.snapshot"
    store_snapshot(path, SAMPLE)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in store_snapshot(path, Snapshot(8))
    monkeypatch.undo()
    assert load_snapshot(path) == (SAMPLE, "")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.snapshot"]


def test_a_path_that_is_a_folder_is_told_and_never_fatal(tmp_path: Path) -> None:
    snapshot, fault = load_snapshot(tmp_path)
    assert snapshot == Snapshot()
    assert fault
    assert store_snapshot(tmp_path, SAMPLE)


def test_a_pipe_in_the_files_place_is_told_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "a.swim"
    os.mkfifo(path)
    snapshot, fault = load_snapshot(path)
    assert snapshot == Snapshot()
    assert "not a regular file" in fault
    assert store_snapshot(path, SAMPLE) == ""
    assert load_snapshot(path) == (SAMPLE, "")
