"""What was recorded runs again to the same end, tells no secret, and runs no code of strangers."""

from __future__ import annotations

import os
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from memory_clusters import KEY, MemoryNetwork, config, member

from swimcluster import Address, Cluster, ConfigError, DecodeError, MemberDied, MetadataChanged, Swim
from swimcluster.checkpoint import load_checkpoint
from swimcluster.config_checks import KEYS_MAX
from swimcluster.dump_file import FORMAT, MAGIC, Dump, decode_dump, encode_dump
from swimcluster.keyring import Keyring
from swimcluster.replay import differences, main, replay, restore

NEW_KEY = b"another secret of the cluster"


@asynccontextmanager
async def incident(recorded_inputs_max: int) -> AsyncIterator[Cluster]:
    """A member that has lived through a bit of everything: news, requests, keys, noise, forgery, a death."""

    async def shout(sender: str, payload: bytes) -> bytes:
        return payload.upper()

    network = MemoryNetwork(delay_s=0.001)
    options = {"recorded_inputs_max": recorded_inputs_max, "on_request": shout}
    async with (
        member(network, "a", **options) as a,
        member(network, "b", "a", **options) as b,
        member(network, "c", "a", **options) as c,
        network.open_transport(Address("stranger", 1)) as stranger,
    ):
        for cluster in (a, b, c):
            await cluster.wait_for(lambda members: len(members) == 3)
        b.set_metadata(b"new")
        a.set_vitals(b"busy")
        for cluster in (a, b, c):
            new_id = cluster.keyring.install(NEW_KEY)
        await trio.sleep(3)
        a.keyring.use(new_id)
        await stranger.send(a.local.address, b"noise")
        await stranger.send(a.local.address, b"sw" + os.urandom(80))
        assert await a.request("b", b"x") == b"X"
        assert await c.request("a", b"y") == b"Y"
        a.broadcast(b"to all")
        network.cut_both(a.local.address, c.local.address)
        network.cut_both(b.local.address, c.local.address)
        await a.wait_for(lambda members: len(members) == 2)
        yield a


@pytest.mark.autojump
@pytest.mark.parametrize("inputs_max", [100_000, 100, 7])
async def test_a_replay_ends_where_the_member_was_and_is_faithful_at_every_checkpoint(
    inputs_max: int, tmp_path: Path
) -> None:
    async with incident(inputs_max) as a:
        path = tmp_path / "a.flight"
        a.write_recording(path)
        dump = decode_dump(path.read_bytes())
        steps = list(replay(dump))
        assert [fault for step in steps for fault in step.faults] == []
        assert differences(steps[-1].machine, a.machine) == []
        assert a.statistics().dropped_malformed > 0
        if inputs_max == 100_000:
            kinds = {type(event) for step in steps for event in step.events}
            assert {MemberDied, MetadataChanged} <= kinds
            calls = {step.input.call for step in steps}
            assert {"install_key", "use_key", "respond", "request", "exchange_replied", "broadcast"} <= calls
        else:
            assert len(dump.segments) == 2
            assert len(steps) <= 2 * inputs_max


@pytest.mark.autojump
async def test_keys_may_come_and_go_while_recorded_and_a_replay_holds_each_in_its_time(tmp_path: Path) -> None:
    keys = [bytes([number]) * 16 for number in range(1, 7)]
    async with member(MemoryNetwork(), "a", keys=keys[:KEYS_MAX]) as a:
        with pytest.raises(ConfigError):
            a.keyring.install(keys[4])
        for key in keys[4:]:
            a.keyring.remove(a.keyring.ids[-1])
            a.keyring.install(key)
        path = tmp_path / "a.flight"
        a.write_recording(path)
        steps = list(replay(decode_dump(path.read_bytes())))
        assert [fault for step in steps for fault in step.faults] == []
        assert differences(steps[-1].machine, a.machine) == []


@pytest.mark.autojump
async def test_a_dump_tells_no_key_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    async with incident(100_000) as a:
        path = tmp_path / "a.flight"
        a.write_recording(path)
        data = path.read_bytes()
        assert path.stat().st_mode & 0o077 == 0
        for key in (KEY, NEW_KEY):
            assert key not in data
            assert Keyring("default", (key,)).signing_key not in data
        assert all(not segment.checkpoint.count(KEY) for segment in decode_dump(data).segments)


@pytest.mark.autojump
async def test_the_command_tells_the_story_and_says_when_it_is_not_faithful(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with incident(100) as a:
        path = tmp_path / "a.flight"
        a.write_recording(path)
        dump = decode_dump(path.read_bytes())
    assert main([str(path)]) == 0
    story = capsys.readouterr().out
    assert "MemberDied c at c:7946" in story
    assert "NOT FAITHFUL" not in story
    assert main([str(path), "--inputs", "--until", "3"]) == 0
    assert "receive_datagram(" in capsys.readouterr().out
    dump.segments[0].inputs.pop()
    path.write_bytes(encode_dump(dump))
    assert main([str(path)]) == 1
    assert "NOT FAITHFUL" in capsys.readouterr().out
    path.write_bytes(b"something else")
    assert main([str(path)]) == 2


@pytest.mark.autojump
async def test_without_a_recorder_there_is_nothing_to_write(tmp_path: Path) -> None:
    async with member(MemoryNetwork(), "a", recorded_inputs_max=0) as a:
        with pytest.raises(ConfigError):
            a.write_recording(tmp_path / "a.flight")


async def test_a_fault_of_the_machine_leaves_a_recording_and_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(self: Swim, now: int, data: bytes) -> None:
        raise RuntimeError("a fault of the machine")

    with pytest.raises(RuntimeError, match="a fault of the machine"):  # noqa: PT012 - the body of the cluster
        async with member(MemoryNetwork(), "a", state_dir=tmp_path) as a:
            monkeypatch.setattr(Swim, "set_vitals", fault)
            a.set_vitals(b"x")
    (recording,) = tmp_path.glob("*.flight")
    assert decode_dump(recording.read_bytes()).segments[-1].inputs[-1].call == "set_vitals"


@pytest.mark.parametrize(
    ("options", "advice"),
    [({}, "open the cluster with a state_dir"), ({"recorded_inputs_max": 0}, "recorded_inputs_max above 0")],
)
async def test_a_fault_without_a_place_for_the_recording_says_how_to_keep_one(
    options: dict[str, int], advice: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(self: Swim, now: int, data: bytes) -> None:
        raise RuntimeError("a fault of the machine")

    with pytest.raises(RuntimeError, match="a fault of the machine"):  # noqa: PT012 - the body of the cluster
        async with member(MemoryNetwork(), "a", **options) as a:
            monkeypatch.setattr(Swim, "set_vitals", fault)
            a.set_vitals(b"x")
    (line,) = [record.message for record in caplog.records if "lost" in record.message]
    assert advice in line


class Evil:
    def __init__(self, callable_: object, *arguments: object) -> None:
        self.reduced = (callable_, arguments)

    def __reduce__(self) -> object:
        return self.reduced


@pytest.mark.parametrize(
    "evil",
    [
        Evil(os.system, "true"),
        Evil(eval, "1"),
        Evil(getattr, "x", "upper"),
        Evil(open, "/dev/null"),
        Evil(__import__, "os"),
        Evil(Path, "/"),
        {"not": "a machine"},
    ],
    ids=["system", "eval", "getattr", "open", "import", "path", "a table"],
)
def test_a_checkpoint_that_names_anything_but_a_machine_is_refused(evil: object) -> None:
    settings = config("a", advertise="a:1")
    with pytest.raises(DecodeError):
        load_checkpoint(pickle.dumps(evil), settings, Keyring("default", (KEY,)))


@pytest.mark.parametrize("number", [1, FORMAT + 1, 10**9])
def test_a_dump_of_another_format_is_refused_by_a_sentence_with_both_numbers(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.flight"
    path.write_bytes(MAGIC.replace(b"%d" % FORMAT, b"%d" % number) + b"checksum and all")
    assert main([str(path)]) == 2
    told = f"{path}: a dump of format {number}, and this release reads format {FORMAT}: replay it with the release that"
    assert capsys.readouterr().err.startswith(told)


@pytest.mark.parametrize(
    "data", [b"", b"something else", MAGIC[:-1], MAGIC.replace(b"%d" % FORMAT, b"two") + b"x" * 20]
)
def test_what_is_no_dump_is_refused_as_that(data: bytes) -> None:
    with pytest.raises(DecodeError, match=r"not a dump of a flight recorder|cut short"):
        decode_dump(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_dump_or_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_dump(data)


@pytest.mark.autojump
async def test_every_cut_and_flipped_byte_of_a_dump_is_a_decode_error(tmp_path: Path) -> None:
    async with member(MemoryNetwork(), "a") as a:
        await trio.sleep(1)
        path = tmp_path / "a.flight"
        a.write_recording(path)
    data = path.read_bytes()
    for place in range(0, len(data), 7):
        for altered in (data[:place], data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]):
            with pytest.raises(DecodeError):
                decode_dump(altered)


@pytest.mark.autojump
async def test_a_dump_that_calls_what_is_no_input_is_refused(tmp_path: Path) -> None:
    async with member(MemoryNetwork(), "a") as a:
        await trio.sleep(1)
        path = tmp_path / "a.flight"
        a.write_recording(path)
    dump = decode_dump(path.read_bytes())
    segment = dump.segments[0]
    for item in (segment.inputs[0]._replace(call="__init__"), segment.inputs[0]._replace(arguments=(1, 2, 3))):
        altered = Dump(dump.config, [type(segment)(segment.checkpoint, segment.key_ids, segment.is_secret, [item])])
        with pytest.raises(DecodeError):
            list(replay(altered))
    assert restore(dump, segment).local.name == "a"
