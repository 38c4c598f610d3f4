"""A server that is measured ends with the bench, at whatever moment that is interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from saiserve.bench import processes


def test_an_interrupt_while_the_server_is_started_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen[bytes]):
        """The child runs, and whoever starts it is interrupted before it knows that."""

        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)

    async def main() -> None:
        async with processes._process([sys.executable, "-c", "input()"], {}, tmp_path):
            await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    try:
        assert [child.returncode is not None for child in started] == [True]
    finally:
        for child in started:
            child.kill()
            child.wait()
