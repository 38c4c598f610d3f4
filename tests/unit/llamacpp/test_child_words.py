"""What the end of an engine process is blamed on: the last it said once its model was loaded."""

from __future__ import annotations

import subprocess

import pytest
import trio

from saiserve.engines.llamacpp.child import Child

WAIT_S = 30.0


async def end_of(last_words: str) -> str:
    """The end of a process that warns, is told that its model is loaded, and ends with these words."""
    process = await trio.lowlevel.open_process(
        ["sh", "-c", f"echo 'an old warning' >&2; read _; {last_words} kill -9 $$"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert isinstance(process.stderr, trio.lowlevel.FdStream)
    child = Child(process, None, "fake")  # type: ignore[arg-type]
    with trio.fail_after(WAIT_S):
        await trio.lowlevel.wait_readable(process.stderr.fileno())
        child.forget_errors()
        await process.stdin.send_all(b"\n")
        said = await child.ended()
    await process.stdin.aclose()
    await process.stderr.aclose()
    return said


@pytest.mark.parametrize(
    ("last_words", "quoted"),
    [("", ""), ("echo 'out of memory' >&2;", " (out of memory)")],
    ids=["silent", "with words"],
)
async def test_what_was_said_while_loading_is_not_what_a_later_end_comes_from(last_words: str, quoted: str) -> None:
    assert await end_of(last_words) == f"the engine process was ended by SIGKILL{quoted}"
