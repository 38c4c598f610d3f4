"""The pages about membership are true: the quickstart runs as printed, every public name and setting is described."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import trio

import swimcluster
from saiserve.bench.ports import free_port
from swimcluster import Config, Statistics

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs" / "swimcluster"


def code_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


def test_the_reference_describes_every_public_name_setting_and_statistic() -> None:
    text = (DOCS / "reference.md").read_text()
    missing = [
        name for name in swimcluster.__all__ if name not in {"Event", "ExchangeHandler"} and f"`{name}`" not in text
    ]
    missing += [field.name for kind in (Config, Statistics) for field in fields(kind) if f"`{field.name}`" not in text]
    assert missing == [], "run python tools/swimcluster_reference.py"


def test_the_reference_is_what_the_docstrings_say_now() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "swimcluster_reference.py"))
    written = (DOCS / "reference.md").read_text().splitlines()
    wanted = tool["page"]().splitlines()
    assert [line for line in wanted if line not in written] == [], "run python tools/swimcluster_reference.py"
    assert written == wanted


def test_the_quickstart_fits_fifteen_lines() -> None:
    (program,) = code_blocks("quickstart.md", "python")
    assert len(program.splitlines()) <= 15


def test_the_security_page_begins_with_what_it_does_not_do() -> None:
    lines = [line for line in (DOCS / "security.md").read_text().splitlines() if line]
    assert "does not encrypt" in lines[1]


def test_every_fault_on_the_page_of_faults_has_tests_that_exist() -> None:
    rows = [
        line for line in (DOCS / "faults.md").read_text().splitlines() if line.startswith("| ") and "---" not in line
    ]
    faults = [row for row in rows if not row.startswith("| what went wrong")]
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)\(", written))
    assert len(faults) >= 35
    for fault in faults:
        named = re.findall(r"`(test_\w+)`", fault)
        assert named, fault
        assert not [name for name in named if name not in there], fault


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_every_python_block_parses_and_every_link_leads_somewhere(page: str) -> None:
    for block in code_blocks(page, "python"):
        if page != "reference.md":
            compile(block, page, "exec", flags=0x2000)  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for target in re.findall(r"\]\(([^)#]+)\)", (DOCS / page).read_text()):
        assert "://" in target or (DOCS / target).exists(), target


@pytest.mark.slow
async def test_the_quickstart_runs_as_printed(tmp_path: Path) -> None:
    (program,) = code_blocks("quickstart.md", "python")
    (tmp_path / "node.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    started: list[trio.Process] = []
    heard: dict[int, bytes] = {}

    async def start(*arguments: str) -> trio.Process:
        command = [sys.executable, str(tmp_path / "node.py"), *arguments]
        process = await trio.lowlevel.open_process(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
        started.append(process)
        return process

    async def read_until(process: trio.Process, text: bytes) -> None:
        """Read on until `text` has come; what came with it is kept for the next call."""
        assert process.stdout is not None
        with trio.move_on_after(60):
            while text not in heard.get(process.pid, b""):
                piece = await process.stdout.receive_some()
                assert piece, heard
                heard[process.pid] = heard.get(process.pid, b"") + piece
        assert text in heard.get(process.pid, b""), (text, heard, [one.returncode for one in started])
        heard[process.pid] = heard[process.pid].partition(text)[2]

    seed, second_address, third_address = (f"127.0.0.1:{free_port()}" for _ in range(3))
    try:
        first = await start("a", seed)
        await read_until(first, b"Snapshot a:ALIVE")
        second = await start("b", second_address, seed)
        await read_until(first, b"MemberJoined a:ALIVE b:ALIVE")
        await read_until(second, b"a:ALIVE b:ALIVE")  # a member that knows nobody yet has nobody to tell that it leaves
        second.send_signal(signal.SIGINT)
        await read_until(first, b"MemberLeft a:ALIVE")
        third = await start("b", third_address, seed)
        await read_until(first, b"MemberJoined a:ALIVE b:ALIVE")
        third.kill()
        await read_until(first, b"MemberSuspected a:ALIVE b:SUSPECT")
        await read_until(first, b"MemberDied a:ALIVE")
    finally:
        for process in started:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                assert process.stdout is not None
                await process.stdout.aclose()
