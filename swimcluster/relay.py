"""Indirect probes: asking others to ping, and pinging for others (SWIM §3.1; nacks from Lifeguard; rule P12)."""

from __future__ import annotations

from swimcluster.address import Address
from swimcluster.codec import encode_message
from swimcluster.core import Core
from swimcluster.messages import Ack, Nack, NotMe, Packet, Ping, PingReq
from swimcluster.timers import Timer

RELAYS_MAX = 1024
"""Pings made for others at one time; further requests are dropped, and the asker's other relays answer."""


class Relay:
    """One ping made for another member; it passes on the first answer."""

    def __init__(self, relays: Relays, request: PingReq, asker: Address) -> None:
        self._relays = relays
        self._request = request
        self._asker = asker
        self.sequence = 0
        self.timers: list[Timer] = []

    def acked(self, now: int, packet: Packet) -> None:
        """Tell the asker that the target answered."""
        if packet.instance == self._request.instance:
            self._answer(encode_message(Ack(self._request.sequence)))

    def refused(self, now: int, packet: Packet) -> None:
        """Tell the asker that another process listens there."""
        self._answer(encode_message(NotMe(self._request.sequence)))

    def nacked(self, now: int, packet: Packet) -> None:
        """Nobody relays for a relay."""

    def say_nack(self, now: int) -> None:
        """Tell the asker that this node is there and has heard nothing."""
        self._relays.core.send(self._asker, encode_message(Nack(self._request.sequence)))

    def expire(self, now: int) -> None:
        """Stop waiting."""
        self._relays.end(self)

    def _answer(self, message: bytes) -> None:
        self._relays.core.send(self._asker, message)
        self._relays.end(self)


class Relays:
    """All pings made for others, and requests for such."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._count = 0

    def ask(self, sequence: int, name: str, instance: bytes, target: Address) -> list[str]:
        """Ask some live members to ping a process, and return who was asked: nobody else can vouch for it."""
        request = encode_message(PingReq(sequence, name, instance, target.host, target.port))
        asked = self.core.some_live(self.core.config.indirect_probes, but=name)
        for member in asked:
            self.core.send(member.address, request)
        return [member.name for member in asked]

    def on_ping_req(self, now: int, packet: Packet, request: PingReq, *, synced: bool) -> None:
        """Ping the target for the sender."""
        core, config = self.core, self.core.config
        if self._count >= RELAYS_MAX:
            core.statistics.dropped_full += 1
            return
        self._count += 1
        relay = Relay(self, request, packet.address)
        relay.sequence = core.expect(relay)
        target = core.decoder.address(request.host, request.port)
        core.send(target, encode_message(Ping(relay.sequence, request.name, request.instance)))
        if config.nacks:
            nack_at = now + config.ns(config.probe_timeout_s * config.nack_fraction)
            relay.timers.append(core.timers.set(nack_at, relay.say_nack))
        relay.timers.append(core.timers.set(now + 2 * core.probe_interval_ns, relay.expire))

    def end(self, relay: Relay) -> None:
        """Forget a relay: no timer and no answer finds it any more, so that this happens once."""
        for timer in relay.timers:
            timer.cancel()
        self.core.forget(relay.sequence)
        self._count -= 1
