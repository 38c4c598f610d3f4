"""What a measured node and the program that measures it say to each other: one JSON object a line.

Times are CLOCK_MONOTONIC nanoseconds, which all processes of a machine share.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

View = dict[str, tuple[str, str]]
"""Live members as one node sees them: name to (address, metadata)."""


def monotonic_ns() -> int:
    """Return the machine's monotonic time."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def say(kind: str, **fields: Any) -> None:
    """Write one line to whoever measures."""
    sys.stdout.write(json.dumps({"at": monotonic_ns(), "kind": kind, **fields}) + "\n")
    sys.stdout.flush()


def say_cpu() -> None:
    """Tell the processor seconds of this process so far, all threads."""
    say("cpu", seconds=time.process_time())
