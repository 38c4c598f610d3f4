"""Taking the secret out of recorded frames: what verified is signed anew with a key anybody can make from its id.

In a replay the machine holds those substitute keys, so it takes and refuses exactly what it took and refused before.
"""

from __future__ import annotations

from blake3 import blake3

from swimcluster.config import FRAME_OVERHEAD_BYTES
from swimcluster.config_checks import KEYS_MAX
from swimcluster.dump_file import Input
from swimcluster.errors import ConfigError
from swimcluster.keyring import Keyring
from swimcluster.mac import (
    HELLO_MAGIC,
    KEY_ID_AT,
    MAC_BYTES,
    FrameKind,
    RejectedError,
    open_frame,
    split_hello,
)

_CONTEXT = "swimcluster 1 flight recorder substitute key"

FRAME_ARGUMENT: dict[str, tuple[int, FrameKind]] = {
    "receive_datagram": (1, FrameKind.DATAGRAM),
    "exchange_received": (1, FrameKind.REQUEST),
    "exchange_replied": (1, FrameKind.REPLY),
}
"""Which argument of a call is a frame, and of which kind."""


def substitute_key(key_id: bytes) -> bytes:
    """Return the MAC key that stands for a secret one in dumps."""
    return blake3(key_id, derive_key_context=_CONTEXT).digest()


def resign_input(keyring: Keyring, item: Input, binding: bytes) -> Input:
    """Return the input with its frame signed anew if it verified, and unchanged if it did not."""
    if item.call not in FRAME_ARGUMENT or not keyring.is_secret:
        return item
    place, kind = FRAME_ARGUMENT[item.call]
    data = item.arguments[place]
    signed_anew = _resign(keyring, kind, data, binding)
    return Input(item.now, item.call, (*item.arguments[:place], signed_anew, *item.arguments[place + 1 :]))


def _resign(keyring: Keyring, kind: FrameKind, data: bytes, binding: bytes) -> bytes:
    hello = b""
    frame = data
    try:
        if data[:2] == HELLO_MAGIC:
            _, frame = split_hello(HELLO_MAGIC, data)
            hello = binding = data[: len(data) - len(frame)]
        if len(frame) < FRAME_OVERHEAD_BYTES:
            return data
        open_frame(keyring, kind, frame, binding)
    except RejectedError:
        return data
    signed = frame[:-MAC_BYTES]
    mac = blake3(signed + binding, key=substitute_key(frame[KEY_ID_AT])).digest(MAC_BYTES)
    return hello + signed + mac


class ReplayKeyring(Keyring):
    """The keyring of a replay: substitute keys under the true ids; `install` takes an id, as dumps have no keys."""

    def __init__(self, cluster: str, ids: tuple[bytes, ...], *, is_secret: bool) -> None:
        super().__init__(cluster, ())
        self.is_secret = is_secret
        if is_secret:
            self._macs = {key_id: substitute_key(key_id) for key_id in ids}
            self.signing_id = ids[0]

    def install(self, key: bytes) -> bytes:
        """Accept a further key by its id, or refuse it as the recorded machine did."""
        if not self.is_secret or (key not in self._macs and len(self._macs) >= KEYS_MAX):
            raise ConfigError("the recorded machine refused this key")
        self._macs[key] = substitute_key(key)
        return key
