"""A port that is drawn for another process is still free when that process asks for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

from saiserve.bench import ports
from saiserve.bench.ports import EPHEMERAL, free_port


def release() -> None:
    """Give back the ports kept for this process, as if it had ended."""
    while ports._held:
        os.close(ports._held.popleft())


def test_the_system_gives_no_such_port_to_anybody_else() -> None:
    if not EPHEMERAL.exists():
        pytest.skip("this system does not say which ports it gives")
    least = int(EPHEMERAL.read_text().split()[0])
    if least - ports.FIRST < ports.LEAST:
        pytest.skip("this system gives all ports")
    assert all(ports.FIRST <= free_port() < least for _ in range(50))


def draw(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *drawn: int) -> None:
    """Let these be drawn next, in a process that drew none before."""
    (tmp_path / "range").write_text("60000\t61000\n")
    monkeypatch.setattr(ports, "EPHEMERAL", tmp_path / "range")
    monkeypatch.setattr(ports, "_given", set())
    draws = iter(drawn)
    monkeypatch.setattr("saiserve.bench.ports.random.randrange", lambda least, most: next(draws))


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_taken_port_is_not_drawn(kind: socket.SocketKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    release()
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        drawn = taken.getsockname()[1]
        draw(monkeypatch, tmp_path, drawn, drawn, free)
        assert free_port() == free


def test_a_port_is_drawn_once_though_nobody_listens_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = free_port(), free_port()
    release()
    draw(monkeypatch, tmp_path, one, one, other)
    assert [free_port(), free_port()] == [one, other]


HOLDER = """
import sys
from saiserve.bench import ports
given = iter([int(sys.argv[1])])
ports._ephemeral_from = lambda: 60_000
ports.random.randrange = lambda least, most: next(given)
print(ports.free_port(), flush=True)
sys.stdin.read()
"""


def test_a_port_that_another_process_drew_is_not_drawn_until_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, other = (free_port() for _ in range(2))
    release()
    draw(monkeypatch, tmp_path, theirs, other, theirs)
    command = [sys.executable, "-c", HOLDER, str(theirs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert int(holder.stdout.readline()) == theirs
        assert free_port() == other
        holder.kill()
    assert free_port() == theirs


def test_no_more_ports_are_kept_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "HELD_MAX", 3)
    monkeypatch.setattr(ports, "_held", deque())
    for _ in range(5):
        free_port()
    assert len(ports._held) <= 3
    release()


@pytest.mark.parametrize("content", ["1024\t65535\n", "", "none"])
def test_where_the_system_gives_all_ports_it_is_asked_for_one(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(content)
    monkeypatch.setattr(ports, "EPHEMERAL", tmp_path / "range")
    with socket.create_server(("127.0.0.1", free_port())):
        pass
