"""A port that is drawn for another process is still free when that process asks for it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from saiserve.bench import ports
from saiserve.bench.ports import EPHEMERAL, free_port


def test_the_system_gives_no_such_port_to_anybody_else() -> None:
    if not EPHEMERAL.exists():
        pytest.skip("this system does not say which ports it gives")
    least = int(EPHEMERAL.read_text().split()[0])
    if least - ports.FIRST < ports.LEAST:
        pytest.skip("this system gives all ports")
    assert all(ports.FIRST <= free_port() < least for _ in range(50))


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_taken_port_is_not_drawn(kind: socket.SocketKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        drawn = taken.getsockname()[1]
        (tmp_path / "range").write_text("60000\t61000\n")
        monkeypatch.setattr(ports, "EPHEMERAL", tmp_path / "range")
        monkeypatch.setattr(ports, "_given", set())
        draws = iter([drawn, drawn, free])
        monkeypatch.setattr("saiserve.bench.ports.random.randrange", lambda least, most: next(draws))
        assert free_port() == free


def test_a_port_is_drawn_once_though_nobody_listens_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = free_port(), free_port()
    (tmp_path / "range").write_text("60000\t61000\n")
    monkeypatch.setattr(ports, "EPHEMERAL", tmp_path / "range")
    monkeypatch.setattr(ports, "_given", set())
    draws = iter([one, one, other])
    monkeypatch.setattr("saiserve.bench.ports.random.randrange", lambda least, most: next(draws))
    assert [free_port(), free_port()] == [one, other]


@pytest.mark.parametrize("content", ["1024\t65535\n", "", "none"])
def test_where_the_system_gives_all_ports_it_is_asked_for_one(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(content)
    monkeypatch.setattr(ports, "EPHEMERAL", tmp_path / "range")
    with socket.create_server(("127.0.0.1", free_port())):
        pass
