"""At most so many log lines of one kind within a minute: nobody else decides how much this node writes."""

from __future__ import annotations

import trio

LINES_PER_WINDOW = 20
"""Lines of one kind within `WINDOW_S`; the rest are counted and told with the next line."""
WINDOW_S = 60.0


class LineBudget:
    """Counts lines by kind."""

    def __init__(self) -> None:
        self._windows: dict[object, tuple[float, int]] = {}

    def take(self, kind: object) -> str | None:
        """Return what to put behind a line of this kind: mostly nothing; None when the line is not to be written."""
        now = trio.current_time()
        start, lines = self._windows.get(kind, (now, 0))
        unsaid = 0
        if now - start >= WINDOW_S:
            unsaid = max(0, lines - LINES_PER_WINDOW)
            start, lines = now, 0
        self._windows[kind] = (start, lines + 1)
        if lines >= LINES_PER_WINDOW:
            return None
        return f" (and {unsaid} more of the kind before)" if unsaid else ""
