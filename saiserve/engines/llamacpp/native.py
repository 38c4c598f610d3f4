"""The loaded llama.cpp library: started once per process, its log kept in a short ring.

Only the engine process imports this module. The log callback is referenced from here for ever, because llama.cpp keeps
a bare pointer to it.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque

import llama_cpp

LOG_LINES_MAX = 40
"""Warnings and errors kept for an explanation of a failed load."""

NO_REASON = "failed to load model"
"""Ends the line that comes after the reason."""

# ggml's levels: 1 debug, 2 information, 3 warning, 4 error, 5 the line before goes on.
KEPT_LEVELS = (3, 4)
CONTINUED_LEVEL = 5

_recent: deque[str] = deque(maxlen=LOG_LINES_MAX)
_last_level = 0


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator,unused-ignore]
def on_log(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """llama.cpp says something: keep warnings and errors."""
    global _last_level  # noqa: PLW0603
    # Hundreds of debug lines come per context: leave before anything else is done.
    if level != CONTINUED_LEVEL:
        _last_level = level
    if _last_level not in KEPT_LEVELS:
        return
    line = text.decode("utf-8", "replace").rstrip()
    if line:
        _recent.append(line)
        sys.stderr.write(line + "\n")


_started = False


def start() -> None:
    """Bring the library up; harmless when called again."""
    global _started  # noqa: PLW0603
    if _started:
        return
    llama_cpp.llama_log_set(on_log, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    _started = True


def failure_reason() -> str:
    """The last thing llama.cpp complained of that says why."""
    telling = (line for line in reversed(_recent) if not line.endswith(NO_REASON))
    return next(telling, "it gave no reason")


def address_of(function: str) -> int:
    """The address of a function of the library, for other native code."""
    return ctypes.cast(getattr(llama_cpp.llama_cpp._lib, function), ctypes.c_void_p).value or 0  # noqa: SLF001
