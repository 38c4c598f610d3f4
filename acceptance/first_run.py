"""What a new user does: clone, one command, one curl."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import trio

from acceptance.check import Check, Scale
from saiserve.bench.ports import free_port

ROOT = Path(__file__).parent.parent
SETUP_S = 1800.0
SECOND_START_S = 40.0


async def _make_serve(scale: Scale) -> str:
    with tempfile.TemporaryDirectory(prefix="saiserve-clone-", ignore_cleanup_errors=True) as folder:
        clone = Path(folder) / "clone"
        if scale.is_full:
            await _run(["git", "clone", "--quiet", str(ROOT), str(clone)], Path(folder))
        else:
            clone = ROOT
        started = time.monotonic()
        first = await _serve_and_ask(clone, Path(folder), SETUP_S)
        took = time.monotonic() - started
        started = time.monotonic()
        await _serve_and_ask(clone, Path(folder), scale.within(SECOND_START_S))
        return f"set up and answered in {took:.0f} s, the second time in {time.monotonic() - started:.1f} s; {first}"


async def _serve_and_ask(clone: Path, folder: Path, ready_s: float) -> str:
    """Run `make serve` with nothing set but a free port, wait for its last line, run the curl it prints."""
    environment = {
        k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "PIP_CONFIG_FILE", "PIP_INDEX_URL")
    }
    environment |= {"PORT": str(free_port()), "HOST": "127.0.0.1", "STATE_DIR": str(folder / "state")}
    log = folder / "serve.log"
    with log.open("wb") as output:
        serve = subprocess.Popen(
            ["make", "--no-print-directory", "serve"], cwd=clone, env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        with trio.move_on_after(ready_s):
            while serve.poll() is None and "curl" not in log.read_text("utf-8", "replace"):
                await trio.sleep(0.1)
        text = log.read_text("utf-8", "replace")
        command = re.search(r"^\s*(curl (?:.*\\\n)*.*)", text, re.MULTILINE)
        assert command, f"make serve shows no curl line:\n{text[-2000:]}"
        assert "smollm2-135m" in text, text
        assert re.search(r"Bearer sai-\S{20,}", command[1]), "no random key is shown"
        answer = await _run(["bash", "-c", command[1]], folder)
        assert "data: [DONE]" in answer, answer[-500:]
        sentence = "".join(re.findall(r'"content":"((?:[^"\\]|\\.)*)"', answer)).replace("\\n", " ")
        assert len(re.findall(r"[a-z]{2,}", sentence)) >= 5, f"no English sentence: {sentence!r}"
        return f"it streams {sentence[:90]!r}"
    finally:
        _signal_group(serve.pid, signal.SIGTERM)
        try:
            await trio.to_thread.run_sync(serve.wait, 40)
        except subprocess.TimeoutExpired:
            _signal_group(serve.pid, signal.SIGKILL)
            serve.wait()


def _signal_group(group: int, number: int) -> None:
    """Signal all that `make` started, if anything of it is left: an early end has an assertion of its own."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


async def _run(command: list[str], folder: Path) -> str:
    result = await trio.run_process(command, cwd=folder, capture_stdout=True, capture_stderr=True, check=False)
    assert result.returncode == 0, f"{command}: {result.stderr[-1000:]!r}"
    return result.stdout.decode("utf-8", "replace")


CHECKS = (
    Check("make-serve", "on a clean clone `make serve` ends in a URL, a curl that streams English, and the models", _make_serve),
)  # fmt: skip
