"""The command line says what it lacks, what is wrong and what it knows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from saiserve import cli

KEY = "a-client-key-of-more-than-16"


@pytest.fixture(autouse=True)
def empty_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("API_KEY", "MODELS", "PORT", "HOST", "CLUSTER_SECRET", "CLUSTER_SEED", "CLUSTER_ADVERTISE"):
        monkeypatch.delenv(name, raising=False)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("saiserve ")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "SERVE_MODULES", ("json", "no_such_module"))
    assert cli.main(["node"]) == cli.EXIT_SETTINGS
    assert "extra 'serve' (not installed: no_such_module)" in capsys.readouterr().err


def test_a_node_without_engine_needs_no_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "ENGINE_MODULES", ("no_such_module",))
    assert cli.main(["node", "--models", "none", "--dry-run"]) == 0
    assert cli.main(["node", "--models", "simulated:sim", "--dry-run"]) == 0
    assert cli.main(["node", "--models", "4b", "--dry-run"]) == cli.EXIT_SETTINGS
    assert "MODELS=none" in capsys.readouterr().err


def test_a_dry_run_checks_the_settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("API_KEY", "short")
    assert cli.main(["node", "--node-name", "box", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "warning: API_KEY has under 16" in out
    assert "box serves smollm2-135m" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["node", "--port", "x", "--dry-run"], "PORT (from the command line)"),
        (["node", "--config", "none.toml"], "none.toml cannot be read"),
        (["node", "--context-tokens", "100000", "--dry-run"], "made for 8192"),
        (["fetch", "--model-dir", "x", "demo"], "'--model-dir' is no argument of this command; --help"),
        (["state", "--url", "127.0.0.1:9"], "http://127.0.0.1:9 does not answer"),
        (["fetch", "no-such-model"], "the command names 'no-such-model', which is no known model"),
        (["bench", "no-such-model"], "the command names 'no-such-model', which is no known model"),
        (["node", "--config", "/none.toml"], "saiserve: /none.toml cannot be read: No such file or directory\n"),
        (["state", "--url", "http://127.0.0.1:9"], "does not answer"),
        (["state", "--url", "http://127.0.0.1:x"], "is no address of a node (Invalid port: 'x')"),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) != 0
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


@pytest.mark.parametrize("command", [["state"], ["load", "4b"], ["unload", "4b"]])
def test_the_node_asked_is_the_one_on_port(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PORT", "9")
    assert cli.main(command) == cli.EXIT_FAILED
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err


def test_known_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models"]) == 0
    assert "q35-4b" in capsys.readouterr().out


def test_importing_the_command_line_imports_no_server() -> None:
    code = (
        "import sys, saiserve.cli; print([m for m in ('trio','starlette','llama_cpp','msgspec') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert out.strip() == "[]"


@pytest.mark.parametrize("arguments", [["--api-key", KEY], [f"--cluster-secret={KEY}"], ["--hf-token", KEY]])
def test_a_secret_as_a_flag_is_refused_without_repeating_it(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["node", *arguments])
    assert end.value.code == cli.EXIT_SETTINGS
    error = capsys.readouterr().err
    assert "in the environment" in error
    assert KEY not in error


def test_a_misspelt_flag_is_refused_with_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["node", "--lane", "3"]) == cli.EXIT_SETTINGS
    assert "did you mean --lanes?" in capsys.readouterr().err
    assert cli.main(["node", f"--apikey={KEY}"]) == cli.EXIT_SETTINGS
    assert KEY not in capsys.readouterr().err


def test_a_dry_run_misses_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["node", "--models", "no-such-file.gguf", "--dry-run"]) == cli.EXIT_SETTINGS
    assert "there is no file no-such-file.gguf" in capsys.readouterr().err


def test_the_cluster_is_shown_one_member_a_line() -> None:
    model = {"id": "smollm2-135m", "state": "ready", "busy": 2.0, "lanes": 4}
    member = {"name": "a", "address": "10.0.0.1:8081", "state": "alive", "reachability": "local", "draining": False}
    other = member | {"name": "box-b", "address": "10.0.0.2:8081", "reachability": "direct", "draining": True}
    table = cli.state_table({"members": [member | {"models": [model]}, other | {"models": []}]})
    assert table.splitlines() == [
        "a      10.0.0.1:8081  alive     local   smollm2-135m ready 2/4",
        "box-b  10.0.0.2:8081  draining  direct  no model",
    ]


@pytest.mark.parametrize(("state", "draining"), [("suspect", False), ("dead", False), ("left", True)])
def test_a_member_that_is_not_alive_is_shown_without_load(state: str, draining: bool) -> None:
    model = {"id": "smollm2-135m", "state": "ready", "busy": None, "lanes": 4}
    member = {"name": "a", "address": "10.0.0.1:8081", "state": state, "reachability": "direct", "draining": draining}
    (line,) = cli.state_table({"members": [member | {"models": [model]}]}).splitlines()
    assert line == f"a  10.0.0.1:8081  {state}  direct  smollm2-135m"
