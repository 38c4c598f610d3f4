"""The file that becomes a model: one process at a time writes it, and whoever else needs the model waits for it.

Nodes of one machine share the folder of models. The lock is on the part itself, so it ends with the process that holds
it, however that ends, and leaves nothing in the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

WAIT_POLL_S: Final = 0.2

log = logging.getLogger(__name__)


@asynccontextmanager
async def part_of(destination: Path) -> AsyncIterator[Path | None]:
    """`NAME.part` beside the destination, for this task alone; None where the destination was made in the meantime.

    Waits as long as another task or process writes it: those end by their own deadlines. The part keeps what an earlier
    try left in it. It must not be removed and written again inside; one that is empty is removed on leaving.

    Raises:
        OSError: the folder cannot be written.
    """
    part = destination.with_name(destination.name + ".part")
    is_told = False
    while (descriptor := _locked(part)) is None:
        if not is_told:
            log.info("%s is being written by another process or for another model: waiting for it", part)
            is_told = True
        await trio.sleep(WAIT_POLL_S)
    try:
        yield None if destination.exists() else part
    finally:
        with contextlib.suppress(OSError):
            if _is_at(descriptor, part) and not os.fstat(descriptor).st_size:
                part.unlink()
        os.close(descriptor)


def _locked(part: Path) -> int | None:
    """A descriptor that holds the lock; None while another does, or the file was renamed while it was locked."""
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = _is_at(descriptor, part)
    except BlockingIOError:
        is_held = False
    except OSError:
        is_held = True  # a file system without locks: as good as it gets there
    if is_held:
        return descriptor
    os.close(descriptor)
    return None


def _is_at(descriptor: int, part: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), part.stat())
    except FileNotFoundError:
        return False
