"""What applications send through the cluster: datagrams, requests with a reply, broadcasts (rules P26 to P28)."""

from __future__ import annotations

from swimcluster.codec import encode_message
from swimcluster.core import Core
from swimcluster.errors import ExchangeError
from swimcluster.events import BroadcastReceived, ReplyReceived, RequestFailed, RequestReceived, UserMessage
from swimcluster.membership import Entry
from swimcluster.messages import Broadcast, Packet, Request, Response, User
from swimcluster.payload import UNSENT, check_name, check_payload
from swimcluster.replay_window import ReplayWindows
from swimcluster.transmits import JoinStatus, PendingReply

REQUESTS_MAX = 1024
"""Requests of others that the application has not answered yet; further ones are closed without a reply."""
ORIGINS_MAX = 16_384
"""Instances whose broadcast numbers are remembered."""
SILENT = {
    JoinStatus.LEAVING: "this member is leaving and sends nothing more for its program",
    JoinStatus.LEFT: "this member has left and sends nothing more; open another cluster to take part again",
    JoinStatus.NAME_IN_USE: "this member has stopped, as a live process answers under its name",
}
"""Why a member that takes no part refuses what its program wants to send."""
NO_REPLY = "no connection, no reply in time, or its on_request is missing or failed, which its log tells"


class OwnRequest:
    """A request of this node's application."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.request_id = 0
        self.unsent = ""
        """Why the driver sent nothing, where that is so."""

    def replied(self, now: int, packet: Packet) -> None:
        """Hand on the reply."""
        first = packet.messages[0] if packet.messages else None
        if isinstance(first, Response):
            self._core.emit(ReplyReceived(self.request_id, first.payload))
        else:
            self._core.emit(RequestFailed(self.request_id, "the member sent something else than a reply"))

    def failed(self, now: int) -> None:
        """Say that there is none."""
        reason = f"{self.unsent}; {UNSENT}" if self.unsent else NO_REPLY
        self._core.emit(RequestFailed(self.request_id, reason, is_unsent=bool(self.unsent)))


class UserMessages:
    """Application payloads in and out."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._seen = ReplayWindows(ORIGINS_MAX)
        self._number = 0
        self._request_id = 0
        self._owed: dict[int, tuple[bytes, int]] = {}

    # Datagrams and broadcasts -----------------------------------------------------------------------------------

    def send(self, name: str, payload: bytes) -> None:
        """Send one payload to one member."""
        check_payload("a message", payload, self._core.config.user_datagram_bytes_max, UNSENT)
        self._core.send(self._live(name).address, encode_message(User(payload)))

    def on_user(self, now: int, packet: Packet, message: User, *, synced: bool) -> None:
        """Hand on a payload."""
        self._core.emit(UserMessage(packet.name, message.payload))

    def broadcast(self, payload: bytes) -> bool:
        """Spread one payload, if this member takes part."""
        core = self._core
        check_payload("a broadcast", payload, core.config.broadcast_bytes_max, UNSENT)
        if not core.is_active:
            return False
        self._number += 1
        instance = core.identity.instance
        self._seen.is_fresh(instance, self._number)
        self._spread(Broadcast(core.identity.name, instance, self._number, payload))
        return True

    def on_broadcast(self, now: int, packet: Packet, message: Broadcast, *, synced: bool) -> None:
        """Hand on a payload that is new here, and spread it further."""
        if self._seen.is_fresh(message.instance, message.number):
            self._core.emit(BroadcastReceived(message.origin, message.payload))
            self._spread(message)

    def _spread(self, message: Broadcast) -> None:
        queue = self._core.packer.broadcasts
        if not queue.put((message.instance, message.number), encode_message(message)):
            self._core.statistics.user_broadcasts_dropped += 1
        self._core.gossip.hasten()

    # Requests ---------------------------------------------------------------------------------------------------

    def request(self, name: str, payload: bytes) -> int:
        """Ask one member."""
        core, config = self._core, self._core.config
        check_payload("a request", payload, config.request_bytes_max, UNSENT)
        owner = OwnRequest(core)
        address = self._live(name).address
        timeout = config.ns(config.exchange_timeout_s)
        owner.request_id = core.exchange(address, [encode_message(Request(payload))], owner, timeout)
        return owner.request_id

    def not_sent(self, request_id: int, reason: str) -> None:
        """Note why the driver sent nothing, if that exchange is a request."""
        pending = self._core.exchanges.get(request_id)
        if pending is not None and isinstance(pending.owner, OwnRequest):
            pending.owner.unsent = reason

    def give_up(self, reason: str) -> None:
        """End all open requests: this node takes no reply any more, and whoever asked must hear how it ended."""
        core = self._core
        for number in [number for number, one in core.exchanges.items() if isinstance(one.owner, OwnRequest)]:
            del core.exchanges[number]
            core.statistics.exchanges_failed += 1
            core.emit(RequestFailed(number, reason))

    def receive(self, now: int, packet: Packet, request: Request, binding: bytes) -> PendingReply | None:
        """Hand on a request and keep its exchange open."""
        core, config = self._core, self._core.config
        if packet.instance == core.identity.instance:
            core.statistics.dropped_own += 1  # Nobody asks itself: it was recorded, and no window holds own counters.
            return None
        self._owed = {key: owed for key, owed in self._owed.items() if owed[1] > now}
        if len(self._owed) >= REQUESTS_MAX or len(request.payload) > config.request_bytes_max:
            core.statistics.dropped_full += 1
            return None
        self._request_id += 1
        timeout = config.ns(config.exchange_timeout_s)
        self._owed[self._request_id] = (binding, now + timeout)
        core.emit(RequestReceived(self._request_id, packet.name, request.payload))
        return PendingReply(self._request_id, timeout)

    def respond(self, now: int, request_id: int, payload: bytes) -> bytes:
        """Return the reply's bytes."""
        check_payload("a reply", payload, self._core.config.request_bytes_max, UNSENT)
        owed = self._owed.pop(request_id, None)
        if owed is None or owed[1] <= now:
            raise ExchangeError(f"request {request_id} is unknown, answered or out of time; nothing was sent")
        self._core.statistics.exchanges_answered += 1
        return self._core.seal_reply(owed[0], [encode_message(Response(payload))])

    def _live(self, name: str) -> Entry:
        check_name(name)
        if not self._core.is_active:
            raise ExchangeError(f"{SILENT[self._core.status]}; {UNSENT}")
        if name == self._core.identity.name:
            raise ExchangeError(f"{name!r} is this member itself, which sends to others only; {UNSENT}")
        entry = self._core.table.live.get(name)
        if entry is None:
            raise ExchangeError(f"no live member is called {name!r}; {UNSENT}")
        return entry
