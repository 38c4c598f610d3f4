"""What runs below a process, read while any of it may end: what has gone, or ended and was not reaped, counts as nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import psutil

ENGINE: Final = "saiserve.engines.llamacpp.process"
"""The module that an engine process runs. What a node or an engine starts beside it, for a moment, runs another."""
MiB: Final = 1 << 20
T = TypeVar("T")


def is_running(pid: int) -> bool:
    """Whether a process of this id runs: one that ended and was not reaped does not."""
    return bool(_opened(pid))


def below(pid: int) -> list[Any]:
    """The processes (psutil's) that a process started, and those that they started, as far as they run."""
    children: list[Any] = []
    for one in _opened(pid):
        children += _read(one, lambda it: it.children(recursive=True), [])
    return [child for child in children if _read(child, lambda it: True, False)]


def engines(pid: int) -> list[Any]:
    """The engine processes of a node, as far as they run, oldest first."""
    found = [one for one in below(pid) if ENGINE in _read(one, lambda it: it.cmdline(), [])]
    return sorted(found, key=lambda one: _read(one, lambda it: it.create_time(), 0.0))


def memory_mib(pid: int) -> dict[int, float]:
    """Resident memory of a process and of each below it, by process id; those that end meanwhile have none."""
    return {one.pid: _read(one, lambda it: it.memory_info().rss / MiB, 0.0) for one in [*_opened(pid), *below(pid)]}


def processor_s(pid: int) -> float:
    """Processor time that a process and all that run below it have used."""
    return sum(_read(one, lambda it: sum(it.cpu_times()[:2]), 0.0) for one in [*_opened(pid), *below(pid)])


def send_signal(process: Any, number: int) -> bool:
    """Send a signal to one of these; whether it was still there."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def _opened(pid: int) -> list[Any]:
    """The process of this id, if there is one that runs."""
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return []
    return [process] if _read(process, lambda it: True, False) else []


def _read(process: Any, read: Callable[[Any], T], nothing: T) -> T:
    """What is read of a process; `nothing` of one that does not run, or ends meanwhile."""
    try:
        is_over = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return nothing if is_over else read(process)
    except psutil.NoSuchProcess:  # a zombie, where it is told from what has gone, is one of these
        return nothing
