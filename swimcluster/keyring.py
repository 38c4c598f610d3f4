"""The keys of a node: one signs, all verify. Secrets live here and nowhere else (docs/protocol.md, security)."""

from __future__ import annotations

from blake3 import blake3

from swimcluster.config_checks import KEYS_MAX, check_key, check_key_id
from swimcluster.errors import ConfigError

KEY_ID_BYTES = 4
CLUSTER_TAG_BYTES = 4
_MAC_CONTEXT = "swimcluster 1 message authentication"
_ID_CONTEXT = "swimcluster 1 key id"
_TAG_CONTEXT = "swimcluster 1 cluster tag"
_OPEN_KEY = b"insecure: anyone may know this key"


class Keyring:
    """Keys bound to one cluster name: the same secret in another cluster makes another MAC.

    Without keys a well-known one is used: it finds damage and other clusters, and authenticates nobody.
    """

    def __init__(self, cluster: str, keys: tuple[bytes, ...]) -> None:
        self._cluster = cluster.encode()
        self.is_secret = bool(keys)
        self.cluster_tag = blake3(self._cluster, derive_key_context=_TAG_CONTEXT).digest(CLUSTER_TAG_BYTES)
        self._macs: dict[bytes, bytes] = {}
        self.signing_id = b""
        for key in keys or (_OPEN_KEY,):
            key_id = self._add(key)
            self.signing_id = self.signing_id or key_id

    def __repr__(self) -> str:
        return f"Keyring({[key_id.hex() for key_id in self.ids()]})"

    def _add(self, key: bytes) -> bytes:
        key_id = self.key_id(key)
        self._macs[key_id] = blake3(self._cluster + b"\0" + key, derive_key_context=_MAC_CONTEXT).digest()
        return key_id

    @staticmethod
    def key_id(key: bytes) -> bytes:
        """Return the 4-byte id of a key, which may be shown."""
        return blake3(key, derive_key_context=_ID_CONTEXT).digest(KEY_ID_BYTES)

    @property
    def signing_key(self) -> bytes:
        """The derived key that makes MACs."""
        return self._macs[self.signing_id]

    def verifying_key(self, key_id: bytes) -> bytes | None:
        """Return the derived key of this id, or None when it is not installed."""
        return self._macs.get(key_id)

    def ids(self) -> tuple[bytes, ...]:
        """Return the ids, the signing one first."""
        return (self.signing_id, *(key_id for key_id in self._macs if key_id != self.signing_id))

    def install(self, key: bytes) -> bytes:
        """Accept a further key; see `Swim.install_key`."""
        check_key(key)
        if not self.is_secret:
            raise ConfigError("an insecure cluster has no keys: restart the member with keys")
        if self.key_id(key) not in self._macs and len(self._macs) >= KEYS_MAX:
            raise ConfigError(f"{KEYS_MAX} keys are installed already: remove one first")
        return self._add(key)

    def remember(self, key: bytes) -> None:
        """Verify with a further key whatever the number held: what is recorded may be signed with keys removed since."""
        check_key(key)
        self._add(key)

    def use(self, key_id: bytes) -> None:
        """Sign with an installed key."""
        self._require(key_id)
        self.signing_id = key_id

    def remove(self, key_id: bytes) -> None:
        """Forget a key that does not sign."""
        self._require(key_id)
        if key_id == self.signing_id:
            raise ConfigError("this key signs: use another one before removing it")
        del self._macs[key_id]

    def _require(self, key_id: bytes) -> None:
        check_key_id(key_id)
        if key_id not in self._macs:
            raise ConfigError(f"no key {key_id.hex()} is installed here: install it first")
