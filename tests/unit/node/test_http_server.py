"""The node's port is opened, or the operator reads why not."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from saiserve.bench.ports import free_port
from saiserve.config import Settings, load_settings
from saiserve.errors import SettingsError
from saiserve.http_server import listen
from saiserve.serve import EXIT_SETTINGS, serve_node
from tests.fakes.ipv6 import needs_ipv6


def settings(host: str, port: int) -> Settings:
    return load_settings({"HOST": host, "PORT": str(port), "MODELS": "none", "API_KEY": "a-key-of-16-or-more"}, {})


@pytest.fixture
def taken_port() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken


def test_the_port_is_open_for_connections() -> None:
    (listener,) = listen(settings("127.0.0.1", free_port()))
    with listener, socket.create_connection(listener.getsockname(), timeout=30):
        pass


def test_the_port_is_open_on_every_address() -> None:
    port = free_port()
    listeners = listen(settings("127.0.0.1, 127.0.0.2", port))
    assert [listener.getsockname() for listener in listeners] == [("127.0.0.1", port), ("127.0.0.2", port)]
    for listener in listeners:
        with listener, socket.create_connection(listener.getsockname(), timeout=30):
            pass


@needs_ipv6
def test_both_families_may_be_named_whole() -> None:
    for listener in listen(settings("0.0.0.0,::", free_port())):
        listener.close()


def test_an_address_that_cannot_be_had_leaves_none_open(taken_port: socket.socket) -> None:
    port = taken_port.getsockname()[1]
    with pytest.raises(SettingsError, match=f"127.0.0.1 port {port} is in use"):
        listen(settings("127.0.0.2,127.0.0.1", port))
    for listener in listen(settings("127.0.0.2", port)):
        listener.close()


@pytest.mark.parametrize("host", [",", "127.0.0.1,127.0.0.1", "[]"])
def test_addresses_that_are_none_are_refused(host: str) -> None:
    with pytest.raises(SettingsError, match=r"HOST .* each once"):
        settings(host, 50_000)


def test_a_node_on_a_taken_port_ends_with_one_sentence(
    taken_port: socket.socket, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saiserve.serve.set_up_logging", lambda *_, **__: None)
    port = taken_port.getsockname()[1]
    assert serve_node(settings("127.0.0.1", port)) == EXIT_SETTINGS
    error = capsys.readouterr().err
    assert f"127.0.0.1 port {port} is in use by another program: set PORT" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("host", "words"),
    [("192.0.2.1", "HOST 192.0.2.1 is no address of this machine"), ("no host", "cannot listen on no host port")],
)
def test_a_host_that_is_not_here_is_refused_by_name(host: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        listen(settings(host, 50_000))
