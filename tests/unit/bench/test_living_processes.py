"""Processes that end while they are read, or wait to be reaped, are nothing to whoever reads: no error, no living engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from acceptance import failover, processes
from acceptance.nodes import Node
from benchmarks.soak import Soak, Tally

US = os.getpid()
WAITS = "import sys; sys.stdin.read()"


@contextmanager
def engine() -> Iterator[subprocess.Popen[bytes]]:
    """A child that its command line calls an engine."""
    command = [sys.executable, "-c", WAITS, processes.ENGINE]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def left_unreaped(child: subprocess.Popen[bytes]) -> None:
    """Kill it and leave it a zombie."""
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def of_us() -> Any:
    """This process in a node's place."""
    return SimpleNamespace(name="a", process=SimpleNamespace(pid=US))


def soak_of_us() -> Soak:
    node: Node = of_us()
    nobody: Any = None
    return Soak(node, nobody, nobody, Tally())


def test_a_living_engine_is_seen_with_its_memory() -> None:
    with engine() as child:
        assert child.pid in [one.pid for one in processes.engines(US)]
        assert child.pid in [one.pid for one in failover.living_engines(of_us())]
        assert processes.memory_mib(US)[child.pid] > 0
        assert processes.processor_s(US) > 0
        assert processes.is_running(child.pid)


def test_an_engine_that_was_killed_and_not_reaped_is_no_living_one() -> None:
    with engine() as child:
        left_unreaped(child)
        assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
        assert child.pid not in [one.pid for one in failover.living_engines(of_us())]
        assert child.pid not in [one.pid for one in processes.below(US)]
        assert child.pid not in processes.memory_mib(US)
        assert child.pid not in soak_of_us().engine_pids()
        assert not processes.is_running(child.pid)


def test_a_child_that_is_no_engine_is_not_taken_for_one() -> None:
    command = [sys.executable, "-c", WAITS, "saiserve.engines.llamacpp.compile_trial"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        try:
            assert child.pid in [one.pid for one in processes.below(US)]
            assert child.pid not in [one.pid for one in processes.engines(US)]
            assert child.pid not in soak_of_us().engine_pids()
        finally:
            child.kill()


def zombie(child: subprocess.Popen[bytes]) -> None:
    left_unreaped(child)


def gone(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()


@pytest.mark.parametrize("end", [zombie, gone])
@pytest.mark.parametrize("at", ["children", "status"])
def test_one_that_ends_between_being_listed_and_being_read_is_nothing(
    end: Callable[[subprocess.Popen[bytes]], None], at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(psutil.Process, at)

    def then_it_ends(self: psutil.Process, **named: Any) -> Any:
        found = real(self, **named)
        if not ended and (at == "children" or self.pid == child.pid):
            ended.append(child.pid)
            end(child)
        return found

    for read in (processes.below, processes.engines, processes.memory_mib, processes.processor_s):
        ended: list[int] = []
        with engine() as child, monkeypatch.context() as patch:
            patch.setattr(psutil.Process, at, then_it_ends)
            read(US)
            assert ended == [child.pid]
    soak_of_us().sample_memory()


def test_a_process_that_has_gone_has_nothing_below_it() -> None:
    with engine() as child:
        gone(child)
    assert processes.below(child.pid) == processes.engines(child.pid) == []
    assert processes.memory_mib(child.pid) == {}
    assert processes.processor_s(child.pid) == 0
    assert not processes.is_running(child.pid)


def test_a_signal_for_one_that_has_gone_is_told_not_raised() -> None:
    with engine() as child:
        found = psutil.Process(child.pid)
        assert processes.send_signal(found, signal.SIGCONT)
        gone(child)
        assert not processes.send_signal(found, signal.SIGCONT)


def test_no_other_file_reads_the_process_table(tmp_path: Path) -> None:
    """One place knows that a process may be gone; whoever reads elsewhere forgets it."""
    root = Path(__file__).parents[3]
    here = {root / "acceptance" / "processes.py", Path(__file__)}
    files = {path for folder in ("acceptance", "benchmarks", "tests") for path in (root / folder).rglob("*.py")} - here
    assert [path for path in files if "psutil.Process(" in path.read_text("utf-8")] == []
