"""Saying goodbye: Left to live members at once, to three by exchange, and by gossip until it was sent enough (P25)."""

from __future__ import annotations

from swimcluster.codec import encode_message
from swimcluster.core import Core
from swimcluster.dissemination import transmit_limit
from swimcluster.events import LeaveFinished
from swimcluster.messages import Packet, Sync
from swimcluster.transmits import JoinStatus, LeaveProgress

EXCHANGES = 3
"""Members told by exchange, which says whether they heard."""


class Farewell:
    """One exchange that carries the goodbye."""

    def __init__(self, core: Core, name: str) -> None:
        self._core = core
        self._name = name

    def replied(self, now: int, packet: Packet) -> None:
        """It heard."""
        self._core.leaver.exchange_over(now, self._name)

    def failed(self, now: int) -> None:
        """It did not say so."""
        self._core.leaver.exchange_over(now, None)


class Leaver:
    """Drives a leave to its end."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._told: dict[str, None] = {}
        self._members = 0
        self._exchanges = 0
        self._rounds_left = 0
        self._is_done = False

    @property
    def progress(self) -> LeaveProgress:
        """How far the leave has come."""
        return LeaveProgress(len(self._told), self._members, self._is_done)

    def leave(self, now: int) -> None:
        """Begin; a second call does nothing."""
        core, config = self._core, self._core.config
        if not core.is_active:
            return
        core.set_status(JoinStatus.LEAVING)
        core.identity.change("left", has_left=True)
        core.packer.updates.put(core.identity.name, core.identity.left_bytes())
        self._members = len(core.table.live)
        self._rounds_left = transmit_limit(config.retransmit_mult, core.table.count)
        message = core.identity.left_bytes()
        for entry in core.some_live(EXCHANGES):
            self._exchanges += 1
            opening = encode_message(Sync(0))
            timeout = config.ns(config.exchange_timeout_s)
            core.exchange(entry.address, [opening, message], Farewell(core, entry.name), timeout)
        self._tell(now)

    def _tell(self, now: int) -> None:
        core, config = self._core, self._core.config
        waiting = [entry for entry in core.table.sorted_live() if entry.name not in self._told]
        targets = waiting or core.table.sorted_live()
        data = core.pack_datagram([core.identity.left_bytes()], len(targets))
        for entry in targets[: config.leave_transmits_max]:
            core.send_datagram(entry.address, data)
            self._told[entry.name] = None
        self._rounds_left -= 1
        if self._rounds_left > 0 and core.table.live:
            interval = config.ns(config.gossip_interval_s or config.probe_interval_s / 5)
            core.timers.set(now + interval, self._tell)
        else:
            self._rounds_left = 0
            self._finish_if_done()

    def exchange_over(self, now: int, name: str | None) -> None:
        """Note the end of one farewell."""
        self._exchanges -= 1
        if name is not None:
            self._told[name] = None
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        core = self._core
        if self._exchanges <= 0 and self._rounds_left <= 0 and not self._is_done:
            self._is_done = True
            core.set_status(JoinStatus.LEFT)
            core.timers.clear()
            core.emit(LeaveFinished(len(self._told), self._members))
