"""Which (instance, counter) pairs were seen: a sliding window per instance, as IPsec does it (RFC 4303 §3.4.3)."""

from __future__ import annotations

WINDOW = 1024
"""How far a frame may be overtaken and still be taken, in frames of its sender."""
_MASK = (1 << WINDOW) - 1


class ReplayWindows:
    """Remembers what each of at most `instances_max` senders has used up; the least recently heard one goes first.

    A forgotten sender's old frames pass once more; the order of updates makes them harmless (P4).
    """

    def __init__(self, instances_max: int) -> None:
        self._instances_max = instances_max
        self._windows: dict[bytes, tuple[int, int]] = {}

    def is_fresh(self, instance: bytes, counter: int) -> bool:
        """Return whether the pair is new and not too old, and remember it."""
        window = self._windows.pop(instance, None)
        if window is None:
            if len(self._windows) >= self._instances_max:
                del self._windows[next(iter(self._windows))]
            self._windows[instance] = (counter, 1)
            return True
        self._windows[instance] = window  # Behind the others: whoever is heard often outlasts a flood of newcomers.
        highest, seen = window
        ahead = counter - highest
        if ahead > 0:
            self._windows[instance] = (counter, ((seen << ahead) | 1) & _MASK if ahead < WINDOW else 1)
            return True
        bit = 1 << -ahead if ahead > -WINDOW else 0
        if bit == 0 or seen & bit:
            return False
        self._windows[instance] = (highest, seen | bit)
        return True
