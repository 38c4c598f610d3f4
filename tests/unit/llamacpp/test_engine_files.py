"""Frames, model files and mailboxes: what is whole passes, what is damaged is named, nothing grows without bound."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saiserve import limits
from saiserve.engines.engine import HopError
from saiserve.engines.frames import FrameDecoder, FrameError, encode_frame
from saiserve.engines.llamacpp.child import describe_end, passed_environment
from saiserve.engines.llamacpp.gguf_file import ModelFileError, read_model_file
from saiserve.engines.llamacpp.loading import choose_lanes
from saiserve.engines.llamacpp.mailbox import Mailbox
from saiserve.engines.llamacpp.protocol import FromProcess
from saiserve.engines.messages import (
    Accepted,
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    Progress,
    RefusalReason,
    Refused,
    Tokens,
)
from saiserve.engines.token_runs import singly
from tests.fixtures import tiny_models

MESSAGES = [
    Accepted("a", 5, 2),
    Progress("a", 3),
    Tokens("a", (1, 2), b"\xc3\xa9"),
    Finished("a", FinishReason.STOP, 2),
    Failed("a", FailureKind.CRASH, "x"),
]


@given(st.lists(st.sampled_from(MESSAGES), max_size=20), st.integers(0, 2**32))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(messages: list[FromProcess], seed: int) -> None:
    stream = b"".join(map(encode_frame, messages))
    cuts = random.Random(seed)
    decoder: FrameDecoder[FromProcess] = FrameDecoder(FromProcess)
    found: list[FromProcess] = []
    at = 0
    while at < len(stream):
        size = cuts.randrange(1, 40)
        found += decoder.feed(stream[at : at + size])
        at += size
    assert found == messages


@pytest.mark.parametrize(
    "data", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x02\x91\x01", b"\x00\x00\x00\x00"]
)
def test_what_is_no_frame_is_an_error(data: bytes) -> None:
    with pytest.raises(FrameError):
        FrameDecoder(FromProcess).feed(data)


@given(st.binary(max_size=200))
def test_random_bytes_never_do_more_than_raise(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        FrameDecoder(FromProcess).feed(data)


def test_a_whole_file_is_read(tiny: Callable[[str], Path]) -> None:
    for name in tiny_models.MODELS:
        file = read_model_file(tiny(name))
        assert file.chat_template == tiny_models.TEMPLATE
        assert file.architecture in name or name.startswith(file.architecture)


def part(path: Path, number: int, count: int) -> Path:
    """A file that says it is one of several."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("split.no", number)
    writer.add_uint16("split.count", count)
    writer.add_tensor(f"blk.{number}.attn_norm.weight", np.ones(8 * (number + 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_model_in_parts_is_as_large_as_all_of_them(tmp_path: Path) -> None:
    parts = [part(tmp_path / f"m-{number + 1:05}-of-00003.gguf", number, 3) for number in range(3)]
    assert read_model_file(parts[0]).bytes_total == sum(one.stat().st_size for one in parts)
    with pytest.raises(ModelFileError, match=r"part 2 of 3 of a model: give the first one"):
        read_model_file(parts[1])
    with pytest.raises(ModelFileError, match=r"must be named so: …-00001-of-00003\.gguf"):
        read_model_file(parts[0].rename(tmp_path / "m.gguf"))
    (tmp_path / "m.gguf").rename(parts[0])
    parts[2].unlink()
    with pytest.raises(ModelFileError, match=r"m-00003-of-00003\.gguf does not exist"):
        read_model_file(parts[0])


def test_every_cut_of_a_file_is_noticed(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    data = tiny("llama").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in [*range(0, 400, 7), *range(400, len(data), 1999), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(ModelFileError, match=r"cut\.gguf"):
            read_model_file(path)


def test_no_flipped_byte_of_the_header_does_more_than_raise(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    data = bytearray(tiny("llama").read_bytes())
    path = tmp_path / "flipped.gguf"
    sentences = []
    for at in range(0, 6000, 13):
        data[at] ^= 0xFF
        path.write_bytes(data)
        data[at] ^= 0xFF
        try:
            read_model_file(path)
        except ModelFileError as error:
            sentences.append(str(error))
    assert len(sentences) > 20
    assert not any("\n" in sentence for sentence in sentences)


async def test_a_late_reader_gets_every_token_in_a_bounded_number_of_messages() -> None:
    mailbox = Mailbox("a")
    mailbox.put(Accepted("a", 1))
    for token in range(10_000):
        mailbox.put(Tokens("a", (token,), b"x"))
    mailbox.put(Finished("a", FinishReason.LENGTH, 10_000))
    heard = [await mailbox.get()]
    while not isinstance(heard[-1], Finished):
        heard.append(await mailbox.get())
    assert len(heard) <= limits.STREAM_BUFFER_MESSAGES + 2
    tokens = [one for one in heard if isinstance(one, Tokens)]
    assert [token for one in tokens for token in one.ids] == list(range(10_000))
    assert sum(len(one.data) for one in tokens) == 10_000
    assert [part.ids for one in tokens for part in singly(one)] == [(token,) for token in range(10_000)]


@pytest.mark.parametrize("kind", [FailureKind.CRASH, FailureKind.HANG])
async def test_the_end_of_a_process_fails_its_requests_by_its_kind_accepted_or_not(kind: FailureKind) -> None:
    accepted, fresh = Mailbox("a"), Mailbox("b")
    accepted.put(Accepted("a", 1))
    for mailbox in (accepted, fresh):
        mailbox.process_ended(kind, "it fell")
    assert isinstance(await accepted.get(), Accepted)
    assert await accepted.get() == Failed("a", kind, "it fell")
    assert await fresh.get() == Failed("b", kind, "it fell")


async def test_an_unloading_fails_what_was_accepted_and_refuses_the_rest() -> None:
    accepted, fresh = Mailbox("a"), Mailbox("b")
    accepted.put(Accepted("a", 1))
    for mailbox in (accepted, fresh):
        mailbox.process_ended(FailureKind.UNLOADED, "unloaded")
    assert isinstance(await accepted.get(), Accepted)
    assert await accepted.get() == Failed("a", FailureKind.UNLOADED, "unloaded")
    assert await fresh.get() == Refused("b", RefusalReason.NO_MODEL, "unloaded")


@pytest.mark.parametrize("kind", FailureKind)
async def test_the_end_of_a_process_is_a_broken_hop_to_whoever_awaits_a_single_answer(kind: FailureKind) -> None:
    mailbox = Mailbox("a", streams=False)
    mailbox.process_ended(kind, "it fell")
    with pytest.raises(HopError, match="it fell"):
        await mailbox.get()


def test_ends_are_told_in_words() -> None:
    assert describe_end(-11, ["a", "b", ""]) == "the engine process was ended by SIGSEGV (b)"
    assert describe_end(4, []) == "the engine process ended with status 4"
    assert "signal 99" in describe_end(-99, [])


def test_only_harmless_environment_is_passed_on() -> None:
    passed = passed_environment({"PATH": "/bin", "API_KEY": "k", "OMP_NUM_THREADS": "1", "HF_TOKEN": "t", "X": "y"})
    assert set(passed) == {"PATH", "OMP_NUM_THREADS", "PYTHONPATH", "GLIBC_TUNABLES"}


def test_the_c_library_asks_for_huge_pages_unless_the_operator_tunes_it() -> None:
    assert passed_environment({})["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    own = {"GLIBC_TUNABLES": "glibc.malloc.check=1"}
    assert passed_environment(own)["GLIBC_TUNABLES"] == "glibc.malloc.check=1"


@pytest.mark.parametrize(
    ("asked", "rates", "cells", "lanes"),
    [
        (None, {1: 100.0, 2: 10.0}, 16_384, 4),
        (None, {1: 100.0, 2: 90.0, 4: 80.0, 8: 60.0}, 16_384, 8),
        (None, {1: 100.0, 2: 10.0}, 1024, 2),
        (1, {1: 100.0}, 16_384, 1),
        (500, {1: 100.0}, 16_384, 63),
    ],
)
def test_lanes_are_as_asked_or_as_measured_but_four_where_they_fit(
    asked: int | None, rates: dict[int, float], cells: int, lanes: int
) -> None:
    assert choose_lanes(asked, rates, cells, 63) == lanes


@pytest.mark.parametrize(("floor", "lanes"), [(0.9, 2), (0.6, 8), (1.0, 1), (None, 8)])
def test_a_speed_floor_that_is_set_decides_alone(floor: float | None, lanes: int) -> None:
    rates = {1: 100.0, 2: 90.0, 4: 80.0, 8: 60.0}
    assert choose_lanes(None, rates, 16_384, 63, speed_floor=floor) == lanes
    assert choose_lanes(3, rates, 16_384, 63, speed_floor=floor) == 3
