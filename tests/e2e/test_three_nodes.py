"""deploy/three_nodes.py: it says that its own nodes are ready and no others, and leaves none behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from acceptance.nodes import free_port
from acceptance.processes import is_running

ROOT = Path(__file__).parent.parent.parent
MODELS_LAST_BROKEN = ("simulated:sim", "simulated:sim", "./missing.gguf")
MODELS_SIMULATED = ("simulated:sim",) * 3
WAIT_S = 60.0


def three_free_ports() -> int:
    """The first of three ports in a row that nobody uses."""
    while True:
        first = free_port()
        try:
            for port in (first + 1, first + 2):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            continue
        return first


@contextmanager
def script(folder: Path, port: int, models: tuple[str, ...], before: str = "") -> Iterator[subprocess.Popen[str]]:
    """The script with models that need no weights; ended by SIGTERM on leaving."""
    code = f"{before}; import sys, three_nodes; three_nodes.MODELS = {models!r}; sys.exit(three_nodes.main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code.removeprefix("; ")],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'deploy'}", "PORT": str(port), "STATE_DIR": str(folder)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)


def pids_when_ready(process: subprocess.Popen[str]) -> list[int]:
    """The nodes' process ids, once the script says that they are ready."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Three nodes are ready"):
            return [int(pid) for pid in re.findall(r"pid (\d+)", line)]
    raise AssertionError("it never said that the nodes are ready")


def wait_gone(pids: list[int]) -> None:
    """Wait until no such process runs any more."""
    deadline = time.monotonic() + WAIT_S
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, "a node was left behind"
        time.sleep(0.05)


def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    first = three_free_ports()
    with socket.socket() as other:
        other.bind(("127.0.0.1", first + 1))
        other.listen()
        with script(tmp_path, first, MODELS_SIMULATED) as process:
            said, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert f"port {first + 1} cannot be used" in said
    assert "make cluster" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_node_that_ends_is_named_at_once_and_nothing_is_called_ready(tmp_path: Path) -> None:
    first = three_free_ports()
    with script(tmp_path, first, MODELS_LAST_BROKEN) as process:
        said, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert f"the node on port {first + 2} ended with exit code 2" in said
    assert "Three nodes are ready" not in said


@pytest.mark.slow
def test_when_all_nodes_ended_by_themselves_it_fails(tmp_path: Path) -> None:
    with script(tmp_path, three_free_ports(), MODELS_SIMULATED) as process:
        for pid in pids_when_ready(process):
            os.kill(pid, signal.SIGKILL)
        said, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert "all nodes have ended" in said


@pytest.mark.slow
def test_a_node_that_was_killed_starts_again_by_the_printed_command(tmp_path: Path) -> None:
    first = three_free_ports()
    with script(tmp_path, first, MODELS_SIMULATED) as process:
        os.kill(pids_when_ready(process)[1], signal.SIGKILL)
        assert process.stdout is not None
        command = next(line for line in process.stdout if f" PORT={first + 1} " in line and "saiserve.cli node" in line)
        next(line for line in process.stdout if f"the node on port {first + 1} ended" in line)
        again = subprocess.Popen(
            f"exec env {command}", shell=True, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            assert again.stdout is not None
            assert f"http://127.0.0.1:{first + 1}" in again.stdout.readline()
        finally:
            again.terminate()
            again.communicate(timeout=WAIT_S)


@pytest.mark.slow
def test_sigint_ends_it_where_it_was_ignored_from_the_start(tmp_path: Path) -> None:
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    with script(tmp_path, three_free_ports(), MODELS_SIMULATED, before=ignore) as process:
        pids = pids_when_ready(process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    wait_gone(pids)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a parent's death is told on Linux alone")
def test_killed_it_leaves_no_node_behind(tmp_path: Path) -> None:
    with script(tmp_path, three_free_ports(), MODELS_SIMULATED) as process:
        pids = pids_when_ready(process)
        process.kill()
        wait_gone(pids)
