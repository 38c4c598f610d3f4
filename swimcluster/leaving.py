"""Saying goodbye: Left to live members until each has confirmed it, to three also by exchange, and by gossip (P25)."""

from __future__ import annotations

from swimcluster.codec import encode_message
from swimcluster.core import Core
from swimcluster.dissemination import transmit_limit
from swimcluster.events import LeaveFinished
from swimcluster.membership import Entry
from swimcluster.messages import Packet, Ping, Sync
from swimcluster.transmits import JoinStatus, LeaveProgress

EXCHANGES = 3
"""Members told by exchange too, which passes where datagrams are lost."""


class Farewell:
    """The goodbye to one process; it counts as told when the process itself says so."""

    def __init__(self, core: Core, entry: Entry) -> None:
        self._core = core
        self.name = entry.name
        self.instance = entry.claim.instance
        self._address = entry.address
        self._sequence = core.expect(self)

    def send(self) -> None:
        """Send Left with a ping behind it: the ack shows that both were taken."""
        ping = encode_message(Ping(self._sequence, self.name, self.instance))
        self._core.send(self._address, self._core.identity.left_bytes(), ping)

    def exchange(self) -> None:
        """Send Left in an exchange, whose reply shows that it was taken."""
        core = self._core
        messages = [encode_message(Sync(0)), core.identity.left_bytes()]
        core.exchange(self._address, messages, self, core.config.ns(core.config.exchange_timeout_s))

    def acked(self, now: int, packet: Packet) -> None:
        """It heard the datagram."""
        if packet.instance == self.instance:
            self._core.leaver.heard_by(self.name)

    def nacked(self, now: int, packet: Packet) -> None:
        """No relay was asked."""

    def refused(self, now: int, packet: Packet) -> None:
        """Another process listens there: the one meant has not heard."""

    def replied(self, now: int, packet: Packet) -> None:
        """It heard the exchange, if it is still the same process."""
        self._core.leaver.exchange_over(self.name if packet.instance == self.instance else None)

    def failed(self, now: int) -> None:
        """It did not say so."""
        self._core.leaver.exchange_over(None)


class Leaver:
    """Drives a leave to its end."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._members: frozenset[str] = frozenset()
        self._farewells: dict[str, Farewell] = {}
        self._sent: dict[str, int] = {}
        self._heard: set[str] = set()
        self._exchanges = 0
        self._rounds_left = 0
        self._is_telling = False
        self._is_done = False

    @property
    def progress(self) -> LeaveProgress:
        """How far the leave has come."""
        return LeaveProgress(len(self._heard & self._members), len(self._members), self._is_done)

    def leave(self, now: int) -> None:
        """Begin; a second call does nothing."""
        core, config = self._core, self._core.config
        if not core.is_active:
            return
        core.set_status(JoinStatus.LEAVING)
        core.joiner.give_up()
        core.identity.change("left", has_left=True)
        core.packer.updates.put(core.identity.name, core.identity.left_bytes())
        self._members = frozenset(core.table.live)
        self._rounds_left = transmit_limit(config.retransmit_mult, core.table.count)
        self._is_telling = True
        for entry in core.some_live(EXCHANGES):
            self._exchanges += 1
            self._farewell(entry).exchange()
        self._tell(now)

    def _tell(self, now: int) -> None:
        """One round to those that have not confirmed, least told first; after the last round wait once more."""
        core, config = self._core, self._core.config
        waiting = [entry for entry in core.table.sorted_live() if entry.name not in self._heard]
        if not waiting or self._rounds_left <= 0:
            self._is_telling = False
            self._finish_if_done()
            return
        self._rounds_left -= 1
        waiting.sort(key=lambda entry: self._sent.get(entry.name, 0))
        for entry in waiting[: config.leave_transmits_max]:
            self._sent[entry.name] = self._sent.get(entry.name, 0) + 1
            self._farewell(entry).send()
        interval = config.ns(config.gossip_interval_s or config.probe_interval_s / 5)
        core.timers.set(now + interval, self._tell)

    def _farewell(self, entry: Entry) -> Farewell:
        """Return the goodbye to the process that holds this name now."""
        farewell = self._farewells.get(entry.name)
        if farewell is None or farewell.instance != entry.claim.instance:
            farewell = self._farewells[entry.name] = Farewell(self._core, entry)
        return farewell

    def heard_by(self, name: str) -> None:
        """Note that a member knows."""
        if not self._is_done:
            self._heard.add(name)
            self._finish_if_done()

    def exchange_over(self, name: str | None) -> None:
        """Note the end of one exchange, and who has heard by it."""
        self._exchanges -= 1
        if name is not None:
            self.heard_by(name)
        else:
            self._finish_if_done()

    def _finish_if_done(self) -> None:
        core = self._core
        is_over = self._exchanges <= 0 and not self._is_telling
        if not self._is_done and (is_over or core.table.live.keys() <= self._heard):
            self._is_done = True
            core.set_status(JoinStatus.LEFT)
            core.timers.clear()
            core.emit(LeaveFinished(self.progress.told, self.progress.members))
