"""Does the process that is said to hold a name answer? Asked at once, on every path, with one verdict (rule P5)."""

from __future__ import annotations

from collections.abc import Callable

from swimcluster.address import Address
from swimcluster.codec import encode_message
from swimcluster.core import Core
from swimcluster.messages import Packet, Ping

CHECK_MAX_S = 3.0
"""A joiner's wait has this bound, whatever local health says; a longer probe time-out is waited for once."""


class HolderCheck:
    """Pings (name, instance) directly, by relays and by exchange; `decided(now, is_alive)` is called once."""

    def __init__(
        self, core: Core, *, name: str, instance: bytes, address: Address, decided: Callable[[int, bool], None]
    ) -> None:
        self._core = core
        self.name = name
        self.instance = instance
        self.address = address
        self._decided = decided
        self.verdict: bool | None = None
        self._relays: list[str] = []
        self._heard_counts_from = 0
        self._sequence = core.expect(self)

    def start(self, now: int) -> None:
        """Ask."""
        core, config = self._core, self._core.config
        core.statistics.name_checks += 1
        ping = encode_message(Ping(self._sequence, self.name, self.instance))
        # A probe interval rather than a time-out: taking a live holder's name is worse than a second more.
        timeout = core.probe_timeout_ns
        wait = min(core.health.scale(core.probe_interval_ns), max(timeout, config.ns(CHECK_MAX_S)))
        self._heard_counts_from = now + timeout // 2
        core.send(self.address, ping)
        core.exchange(self.address, [ping], self, wait)
        self._relays = core.relays.ask(self._sequence, self.name, self.instance, self.address)
        core.timers.set(now + wait, self._ran_out)

    def acked(self, now: int, packet: Packet) -> None:
        """The holder answered, or a relay says that it did."""
        if packet.instance == self.instance or packet.name in self._relays:
            self._decide(now, is_alive=True)

    def nacked(self, now: int, packet: Packet) -> None:
        """Wait on."""

    def refused(self, now: int, packet: Packet) -> None:
        """Another process listens where the holder was."""
        self._decide(now, is_alive=False)

    def replied(self, now: int, packet: Packet) -> None:
        """Take the answer to the exchange."""
        self._decide(now, is_alive=packet.instance == self.instance)

    def failed(self, now: int) -> None:
        """Wait on: a datagram or a relay may still bring an answer."""

    def _ran_out(self, now: int) -> None:
        # No answer came, but anything else the holder sent lately shows it alive as well.
        entry = self._core.table.get(self.name)
        heard_at = entry.heard_at if entry is not None and entry.claim.instance == self.instance else None
        self._decide(now, is_alive=heard_at is not None and heard_at > self._heard_counts_from)

    def _decide(self, now: int, *, is_alive: bool) -> None:
        if self.verdict is None:
            self.verdict = is_alive
            self._core.forget(self._sequence)
            self._decided(now, is_alive)
