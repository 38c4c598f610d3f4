"""From bytes to effects: check, decode, and hand each message to its handler (rules P2, P8, P29)."""

from __future__ import annotations

from collections.abc import Callable

from swimcluster.address import Address
from swimcluster.codec import encode_message
from swimcluster.core import Core, ExchangeOwner
from swimcluster.errors import DecodeError
from swimcluster.mac import (
    HELLO_MAGIC,
    REFUSAL_MAGIC,
    VERSION,
    Frame,
    FrameKind,
    Hello,
    RejectedError,
    binding_of,
    encode_hello,
    open_frame,
    split_hello,
)
from swimcluster.messages import (
    Ack,
    Alive,
    Broadcast,
    Dead,
    Introduce,
    Left,
    Message,
    Nack,
    NotMe,
    Packet,
    Ping,
    PingReq,
    Request,
    Suspect,
    Sync,
    User,
)
from swimcluster.rate_limit import SourceLimiter
from swimcluster.refusals import Refusals
from swimcluster.replay_window import ReplayWindows
from swimcluster.transmits import JoinStatus, PendingReply

REFUSED = frozenset({"dropped_key", "dropped_cluster", "dropped_mac", "dropped_version"})
"""What a caller is told by a refusal; anything else is closed without a word."""

Handler = Callable[..., None]


class Inbox:
    """Takes what arrives."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._limiter = SourceLimiter(core.config.source_rate_max)
        self._windows = ReplayWindows(2 * core.config.members_max)
        self.refusals = Refusals(core)
        self._in_datagrams: dict[type[Message], Handler] = {
            Ping: self._on_ping,
            Ack: self._on_ack,
            Nack: self._on_nack,
            NotMe: self._on_not_me,
            PingReq: core.relays.on_ping_req,
            Alive: core.news.on_alive,
            Suspect: core.news.on_suspect,
            Dead: core.news.on_dead,
            Left: core.news.on_left,
            Introduce: self._on_introduce,
            User: core.user.on_user,
            Broadcast: core.user.on_broadcast,
        }
        news = (Alive, Suspect, Dead, Left)
        self._in_state: dict[type[Message], Handler] = {cls: self._in_datagrams[cls] for cls in news}

    # Datagrams --------------------------------------------------------------------------------------------------

    def datagram(self, now: int, source: Address | None, data: bytes) -> None:
        """Take one datagram."""
        core, statistics = self._core, self._core.statistics
        statistics.datagrams_received += 1
        statistics.bytes_received += len(data)
        if source is not None and not self._limiter.admits(now, source.host):
            statistics.dropped_rate += 1
            return
        try:
            frame = self._open(FrameKind.DATAGRAM, data)
            packet = self._decode(frame)
        except RejectedError as rejected:
            self._count(now, rejected)
            return
        except DecodeError:
            statistics.dropped_malformed += 1
            return
        if core.status is not JoinStatus.LEFT and core.status is not JoinStatus.NAME_IN_USE:
            self.take(now, packet, synced=False)

    def _open(self, kind: FrameKind, data: bytes, binding: bytes = b"") -> Frame:
        """Return an authentic frame that was not seen before.

        Args:
            binding: what its MAC covers beside it: the hello of a request.
        Raises:
            RejectedError: it is not to be taken; the error names the counter.
        """
        core = self._core
        frame = open_frame(core.keyring, kind, data, binding)
        if frame.instance == core.identity.instance:
            if kind is FrameKind.DATAGRAM:
                raise RejectedError("dropped_own" if frame.counter <= core.counter else "clone")
        elif not self._windows.is_fresh(frame.instance, frame.counter):
            raise RejectedError("dropped_replay")
        return frame

    def _decode(self, frame: Frame) -> Packet:
        packet = self._core.decoder.decode(frame.instance, frame.body)
        self._core.statistics.dropped_full += packet.left_out
        return packet

    def _open_request(self, hello: Hello, data: bytes, rest: bytes) -> Frame:
        if hello.version != VERSION:
            raise RejectedError("dropped_version")
        return self._open(FrameKind.REQUEST, rest, data[: len(data) - len(rest)])

    def _count(self, now: int, rejected: RejectedError) -> None:
        statistics = self._core.statistics
        counter = rejected.counter
        if counter == "clone":
            counter = "dropped_own"
            self._core.defence.heard_clone(now)
        setattr(statistics, counter, getattr(statistics, counter) + 1)

    def take(self, now: int, packet: Packet, *, synced: bool) -> None:
        """Hand each message to its handler, then judge what the packet says of its sender."""
        handlers = self._in_state if synced else self._in_datagrams
        for message in packet.messages:
            handler = handlers.get(type(message))
            if handler is not None:
                handler(now, packet, message, synced=synced)
        if self._core.is_active:
            self._core.first_hand.judge(now, packet)

    # Exchanges --------------------------------------------------------------------------------------------------

    def request(self, now: int, source: Address | None, data: bytes) -> bytes | PendingReply | None:
        """Take one exchange request and return its reply."""
        core, statistics = self._core, self._core.statistics
        statistics.bytes_received += len(data)
        if source is not None and not self._limiter.admits(now, source.host):
            statistics.dropped_rate += 1
            return None
        if len(data) > core.config.exchange_bytes_max:
            statistics.dropped_malformed += 1
            return None
        hello: Hello | None = None
        try:
            hello, rest = split_hello(HELLO_MAGIC, data)
            frame = self._open_request(hello, data, rest)
            packet = self._decode(frame)
        except RejectedError as rejected:
            self._count(now, rejected)
            if hello is None or rejected.counter not in REFUSED:
                return None
            self.refusals.of_caller(now, source, hello)
            return self._refusal(data)
        except DecodeError:
            statistics.dropped_malformed += 1
            return None
        if core.status in {JoinStatus.LEFT, JoinStatus.NAME_IN_USE}:
            return None
        return self._answer(now, packet, binding_of(frame.instance, frame.counter))

    def _answer(self, now: int, packet: Packet, binding: bytes) -> bytes | PendingReply | None:
        core = self._core
        first = packet.messages[0] if packet.messages else None
        if isinstance(first, Sync):
            messages = core.joiner.answer(now, packet, first)
        elif isinstance(first, Ping):
            messages = [self._pong(first), *self._words_missed(packet)]
            if packet.instance == core.identity.instance:
                core.defence.met_itself(first.sequence)
            core.first_hand.judge(now, packet)
        elif isinstance(first, Request):
            core.first_hand.judge(now, packet)
            return core.user.receive(now, packet, first, binding)
        else:
            core.statistics.dropped_malformed += 1
            return None
        core.statistics.exchanges_answered += 1
        return core.seal_reply(binding, messages)

    def _words_missed(self, packet: Packet) -> list[bytes]:
        """Return what its name's holder said later than a caller did: a copy gets no datagrams, only replies (P8)."""
        entry = self._core.table.get(packet.name)
        said = (packet.epoch, packet.instance, packet.incarnation)
        return [entry.alive_bytes] if entry is not None and entry.payload_at > said else []

    def _refusal(self, request: bytes) -> bytes | None:
        core = self._core
        refusal = encode_hello(REFUSAL_MAGIC, core.config.cluster, core.keyring.ids())
        # A stranger never gets more than it sent.
        return refusal if len(refusal) <= len(request) else None

    def reply(self, now: int, exchange_id: int, data: bytes) -> None:
        """Take the reply to an own exchange."""
        core, statistics = self._core, self._core.statistics
        pending = core.exchanges.pop(exchange_id, None)
        statistics.bytes_received += len(data)
        if pending is None:
            return
        try:
            if data[:2] == REFUSAL_MAGIC:
                hello, _ = split_hello(REFUSAL_MAGIC, data)
                raise RejectedError(self.refusals.by_seed(now, pending.destination, hello))
            frame = open_frame(core.keyring, FrameKind.REPLY, data, pending.binding)
            packet = self._decode(frame)
        except DecodeError as error:
            self._count(now, error if isinstance(error, RejectedError) else RejectedError("dropped_malformed"))
            self._failed(now, pending.owner)
            return
        pending.owner.replied(now, packet)
        # A node that has not been let in yet keeps quiet: whoever hears it would take it for the name's new holder.
        if core.status is JoinStatus.JOINED and packet.instance != core.identity.instance:
            for message in packet.messages[1:]:
                if isinstance(packet.messages[0], Ack | NotMe) and isinstance(message, Alive):
                    core.news.on_alive(now, packet, message, synced=True)
            core.first_hand.judge(now, packet)

    def no_reply(self, now: int, exchange_id: int, unsent: str, refusal: str) -> None:
        """Hear that an own exchange failed, and why if it was not sent or whoever listens there is no member."""
        self._core.user.not_sent(exchange_id, unsent)
        pending = self._core.exchanges.pop(exchange_id, None)
        if pending is not None:
            if refusal:
                self.refusals.by_stranger(now, pending.destination, refusal)
            self._failed(now, pending.owner)

    def _failed(self, now: int, owner: ExchangeOwner) -> None:
        self._core.statistics.exchanges_failed += 1
        owner.failed(now)

    # Message handlers -------------------------------------------------------------------------------------------

    def _on_ping(self, now: int, packet: Packet, ping: Ping, *, synced: bool) -> None:
        self._core.send(packet.address, self._pong(ping))

    def _pong(self, ping: Ping) -> bytes:
        identity = self._core.identity
        is_me = ping.name == identity.name and ping.instance == identity.instance
        return encode_message(Ack(ping.sequence) if is_me else NotMe(ping.sequence))

    def _on_ack(self, now: int, packet: Packet, ack: Ack, *, synced: bool) -> None:
        waiter = self._core.waiters.get(ack.sequence)
        if waiter is not None:
            waiter.acked(now, packet)

    def _on_nack(self, now: int, packet: Packet, nack: Nack, *, synced: bool) -> None:
        waiter = self._core.waiters.get(nack.sequence)
        if waiter is not None:
            waiter.nacked(now, packet)

    def _on_not_me(self, now: int, packet: Packet, not_me: NotMe, *, synced: bool) -> None:
        waiter = self._core.waiters.get(not_me.sequence)
        if waiter is not None:
            waiter.refused(now, packet)

    def _on_introduce(self, now: int, packet: Packet, introduce: Introduce, *, synced: bool) -> None:
        self._core.send(packet.address, self._core.identity.alive_bytes)
