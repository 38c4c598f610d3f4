"""What a crash, a hang, a damaged file, a dead parent and a stop cost: one process, never the node."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from acceptance.processes import is_running
from saiserve.engines.engine import HopError
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.supervisor import EngineLoadError, EngineState, LlamaEngine, open_engine
from saiserve.engines.messages import (
    Accepted,
    Count,
    Failed,
    FailureKind,
    Finished,
    Progress,
    Prompt,
    RefusalReason,
    Sampling,
    Tokens,
)
from tests.e2e.engine.asking import Heard, ask, request, until

pytestmark = pytest.mark.slow


def asks_for_huge_pages() -> bool:
    """Whether glibc asks for them: where all memory gets them, or none, it does not."""
    kinds = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return kinds.exists() and "[madvise]" in kinds.read_text("ascii")


Settings = Callable[..., EngineSettings]
ROOMY: dict[str, Any] = {"context_tokens": 32_768, "cells": 65_536}
ENDLESS: dict[str, Any] = {"sampling": Sampling(seed=1, temperature=1, ignore_eos=True), "max_tokens": 30_000}
"""In such an engine it goes on for much longer than this process may stand still before it ends it."""


async def test_a_killed_process_fails_what_it_had_accepted_and_comes_back(tiny_settings: Settings) -> None:
    # More cells than the model was trained on: llama.cpp warns while it loads, which no later end comes from.
    async with open_engine(tiny_settings(**ROOMY)) as engine:
        first_pid = engine.pid
        assert first_pid is not None
        heard = [Heard() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for one in heard:
                nursery.start_soon(lambda one=one: ask(engine, heard=one, **ENDLESS))
            await until(lambda: all(any(isinstance(r, Tokens) for r in one.replies) for one in heard))
            os.kill(first_pid, signal.SIGKILL)
        for one in heard:
            last = one.replies[-1]
            assert isinstance(last, Failed)
            assert last.kind is FailureKind.CRASH
            assert last.detail == "the engine process was ended by SIGKILL"
        await until(lambda: engine.state is EngineState.READY and engine.pid != first_pid)
        assert engine.crashes == 1
        assert (await ask(engine, sampling=ENDLESS["sampling"])).finished.completion_tokens == 16


async def test_a_process_that_cannot_be_started_again_is_tried_again_later(
    tiny_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, faults = trio.lowlevel.open_process, [OSError(errno.EAGAIN, "no process to be had")] * 2

    async def open_process(*given: Any, **named: Any) -> trio.Process:
        if faults:
            raise faults.pop()
        return await real(*given, **named)

    async with open_engine(tiny_settings()) as engine:
        assert engine.pid is not None
        monkeypatch.setattr(trio.lowlevel, "open_process", open_process)
        os.kill(engine.pid, signal.SIGKILL)
        await until(lambda: "no process to be had" in engine.detail)
        assert (await ask(engine)).refused.reason is RefusalReason.LOADING
        await until(lambda: engine.state is EngineState.READY)
        assert not faults
        faults.append(OSError(errno.ENOMEM, "no memory to be had"))
        with pytest.raises(EngineLoadError, match="no memory to be had"):
            async with open_engine(tiny_settings()):
                pass


async def test_a_process_that_stops_breathing_is_killed_and_its_requests_hang(tiny_settings: Settings) -> None:
    engine = LlamaEngine(tiny_settings(**ROOMY), heartbeat_lost_s=12.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        assert engine.pid is not None
        async with engine.generate(request(**ENDLESS)) as replies:
            async for reply in replies:
                if isinstance(reply, Tokens):
                    os.kill(engine.pid, signal.SIGSTOP)
                    break
            with trio.fail_after(60):
                rest = [reply async for reply in replies]
        assert isinstance(rest[-1], Failed)
        assert rest[-1].kind is FailureKind.HANG
        await until(lambda: engine.state is EngineState.READY)
        nursery.cancel_scope.cancel()


async def test_a_request_not_accepted_when_the_process_dies_is_a_broken_hop(tiny_settings: Settings) -> None:
    async with open_engine(tiny_settings()) as engine:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        broken: list[HopError] = []

        async def count() -> None:
            try:
                await engine.count(Count("c", "tiny", Prompt(text="x")))
            except HopError as error:
                broken.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await until(lambda: engine.running == 1)
            os.kill(engine.pid, signal.SIGKILL)
        assert [error.sent for error in broken] == [True]


async def test_a_process_in_a_long_step_is_vouched_for(tiny_settings: Settings) -> None:
    async with open_engine(tiny_settings()) as engine:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGSTOP)
        async with engine.generate(request(max_tokens=2)) as replies:
            with trio.fail_after(60):
                assert isinstance(await anext(replies), Progress)
            os.kill(engine.pid, signal.SIGCONT)
            rest = [reply async for reply in replies]
        assert any(isinstance(reply, Accepted) for reply in rest)
        assert isinstance(rest[-1], Finished)


async def test_leaving_a_stream_frees_its_lane(tiny_settings: Settings) -> None:
    async with open_engine(tiny_settings(**ROOMY)) as engine:
        for _ in range(20):
            async with engine.generate(request(**ENDLESS)) as replies:
                async for reply in replies:
                    if isinstance(reply, Tokens):
                        break
        await until(lambda: engine.load.busy == 0 and engine.load.queued == 0)
        assert engine.running == 0
        await until(lambda: engine.counters["cancelled"] >= 20)


async def test_stopping_fails_the_running_as_unloaded_and_leaves_no_process(tiny_settings: Settings) -> None:
    engine = LlamaEngine(tiny_settings(**ROOMY))
    heard = Heard()
    async with trio.open_nursery() as outer:
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            pid = engine.pid
            outer.start_soon(lambda: ask(engine, heard=heard, **ENDLESS))
            await until(lambda: heard.replies)
            nursery.cancel_scope.cancel()
    assert isinstance(heard.replies[-1], Failed)
    assert heard.replies[-1].kind is FailureKind.UNLOADED
    assert pid is not None
    assert not is_running(pid)


async def test_the_process_inherits_one_socket_and_no_secret(
    tiny_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "sesame-open-sesame")
    monkeypatch.setenv("CLUSTER_SECRET", "sesame-cluster-sesame")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        async with open_engine(tiny_settings()) as engine:
            process = Path(f"/proc/{engine.pid}")
            assert b"sesame" not in (process / "environ").read_bytes()
            assert b"sesame" not in (process / "cmdline").read_bytes()
            links = []
            for link in (process / "fd").iterdir():
                with suppress(FileNotFoundError):  # it opens and closes files while it is looked at
                    links.append(os.readlink(link))
            assert len([link for link in links if link.startswith("socket:")]) == 1


@pytest.mark.skipif(not asks_for_huge_pages(), reason="this system gives huge pages to all or to nobody, unasked")
async def test_small_weights_and_their_cache_ask_for_huge_pages(smollm2_path: Path) -> None:
    settings = EngineSettings(model_path=str(smollm2_path), model_id="smol", context_tokens=2048, cells=8192, threads=2)
    async with open_engine(settings) as engine:
        text = Path(f"/proc/{engine.pid}/smaps").read_text("utf-8")
        kib = [
            int(size)
            for size, flags in re.findall(r"^Size: +(\d+) kB.*?^VmFlags: (.*?)$", text, re.MULTILINE | re.DOTALL)
            if "hg" in flags
        ]
        assert sum(kib) >> 10 > 300  # 140 of weights, 180 of cells; how much of it is huge is the kernel's to say
        assert str(smollm2_path) not in text


def test_the_process_ends_with_its_parent_whatever_it_is_doing(tiny_path: Path, tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        "import os, sys, trio\n"
        "from saiserve.engines.llamacpp.supervisor import EngineSettings, open_engine\n"
        "async def main():\n"
        f"    async with open_engine(EngineSettings(model_path={str(tiny_path)!r}, model_id='t', threads=1)) as e:\n"
        "        print(e.pid, flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_running(child)
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 60
    while is_running(child):  # whoever inherits it may leave it unreaped
        assert time.monotonic() < deadline, "it outlived its parent"
        time.sleep(0.05)


def damaged(kind: str, whole: Path, folder: Path) -> Path:
    """A file or something else at a model's path that cannot be served."""
    data = whole.read_bytes()
    path = folder / "model.gguf"
    contents = {
        "empty": b"",
        "four bytes": data[:4],
        "header cut": data[:24],
        "half": data[: len(data) // 2],
        "nearly whole": data[: len(data) * 999 // 1000],
        "other magic": b"GGML" + data[4:],
        "web page": b"<!DOCTYPE html><html>moved</html>" * 20,
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "huge string": data[:24] + (2**60).to_bytes(8, "little") + data[32:],
        "empty key": data[:24] + (0).to_bytes(8, "little") + data[32:],
    }
    if kind in contents:
        path.write_bytes(contents[kind])
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "vocabulary":
        import gguf

        writer = gguf.GGUFWriter(path, "llama")
        writer.add_vocab_size(3)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
    return path


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "does not exist"),
        ("empty", "is empty"),
        ("four bytes", "cut short"),
        ("header cut", "cut short"),
        ("half", "cut short"),
        ("nearly whole", "cut short"),
        ("other magic", "not a GGUF"),
        ("web page", "web page"),
        ("pointer", "Git LFS pointer"),
        ("huge string", "damaged"),
        ("empty key", "damaged"),
        ("folder", "directory"),
        ("loop", "cannot be read"),
        ("vocabulary", "no weights"),
    ],
)
async def test_a_damaged_file_is_a_sentence_with_its_name(
    tiny_settings: Settings, tiny_path: Path, tmp_path: Path, kind: str, words: str
) -> None:
    path = damaged(kind, tiny_path, tmp_path)
    started = time.monotonic()
    with pytest.raises(EngineLoadError) as caught:
        async with open_engine(tiny_settings(model_path=str(path))):
            pass
    assert time.monotonic() - started < 60
    assert str(path) in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_weights_that_only_llama_cpp_can_refuse_are_a_sentence_too(
    tiny_settings: Settings, tiny_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_path.read_bytes().replace(b"attn_norm", b"attn_mrno"))
    with pytest.raises(EngineLoadError, match=r"did not take the model: .*tensor 'blk.0.attn_norm.weight' not found"):
        async with open_engine(tiny_settings(model_path=str(path))):
            pass


async def test_a_model_too_large_for_the_memory_is_refused_with_numbers(tiny_settings: Settings) -> None:
    with pytest.raises(EngineLoadError, match=r"needs about .* GB .* are free"):
        async with open_engine(tiny_settings(cells=2_000_000_000)):
            pass


async def test_a_file_damaged_between_lives_leaves_the_node_waiting_with_a_reason(
    tiny_settings: Settings, tiny_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_path.read_bytes())
    async with open_engine(tiny_settings(model_path=str(path))) as engine:
        assert engine.pid is not None
        path.unlink()
        os.kill(engine.pid, signal.SIGKILL)
        await until(lambda: "does not exist" in engine.detail)
        refused = (await ask(engine)).refused
        assert refused.reason is RefusalReason.LOADING
        path.write_bytes(tiny_path.read_bytes())
        await until(lambda: engine.state is EngineState.READY)
