"""Reads messages on their way, for timelines and for simulations that count kinds of messages."""

from __future__ import annotations

from swimcluster.codec import Decoder
from swimcluster.config import Config
from swimcluster.errors import DecodeError
from swimcluster.keyring import Keyring
from swimcluster.mac import FrameKind, open_frame
from swimcluster.messages import Message, Packet


class Wire:
    """Decodes datagrams of one cluster, without the replay window: any datagram reads the same any number of times."""

    def __init__(self, config: Config, keyring: Keyring | None = None) -> None:
        self._keyring = Keyring(config.cluster, config.keys) if keyring is None else keyring
        self._decoder = Decoder(config)

    def packet(self, data: bytes) -> Packet | None:
        """The packet in a datagram; None when it is not one of this cluster."""
        try:
            frame = open_frame(self._keyring, FrameKind.DATAGRAM, data)
            return self._decoder.decode(frame.instance, frame.body)
        except DecodeError:
            return None

    def messages(self, data: bytes) -> tuple[Message, ...]:
        """The messages in a datagram; none when it is not one of this cluster."""
        packet = self.packet(data)
        return () if packet is None else packet.messages

    def describe(self, data: bytes) -> str:
        """A datagram in words: its sender and what it says."""
        packet = self.packet(data)
        if packet is None:
            return f"{len(data)} bytes, not a datagram of this cluster"
        return f"{packet.name}: " + (", ".join(map(_words, packet.messages)) or "nothing new")


def _words(message: Message) -> str:
    fields = message._asdict()
    parts = [type(message).__name__]
    if "name" in fields:
        parts.append(str(fields["name"]))
    if "incarnation" in fields:
        parts.append(f"{fields['epoch'] % 1_000_000}.{fields['incarnation']}")
    if fields.get("accuser"):
        parts.append(f"by {fields['accuser']}")
    return " ".join(parts)
