"""Rotating cluster keys at run time: install the new one everywhere, use it, remove the old one everywhere.

Keys come from local configuration and never travel; their 4-byte ids ride in metadata, so that every node sees
which members hold which key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from swimcluster.config_checks import check_key_id

if TYPE_CHECKING:
    from swimcluster.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Coverage:
    """Who could verify what is signed with a key."""

    holders: tuple[str, ...]
    """Live members that hold it, sorted by name."""
    lacking: tuple[str, ...]
    """Live members that lack it, sorted by name."""


class KeyRotation:
    """The keys of this node; `Cluster.keyring`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def install(self, key: bytes) -> bytes:
        """Accept a further key for verifying; returns its 4-byte id. Idempotent.

        Raises:
            ConfigError: not 16 to 1024 bytes, four keys held already, or an insecure cluster; nothing changed.
        """
        key_id: bytes = self._cluster.feed("install_key", key)
        return key_id

    def use(self, key_id: bytes) -> None:
        """Sign with an installed key.

        Raises:
            ConfigError: not installed here, or live members lack it (they are named); nothing changed.
        """
        self._cluster.feed("use_key", key_id)

    def remove(self, key_id: bytes) -> None:
        """Forget a key that does not sign.

        Raises:
            ConfigError: not installed, or the one in use; nothing changed.
        """
        self._cluster.feed("remove_key", key_id)

    @property
    def ids(self) -> tuple[bytes, ...]:
        """The ids of the installed keys; the first is the one that signs."""
        return self._cluster.machine.key_ids()

    def coverage(self, key_id: bytes) -> Coverage:
        """Return which live members hold the key.

        Raises:
            ConfigError: not bytes, as `install` returned them.
        """
        check_key_id(key_id)
        return Coverage(*self._cluster.machine.key_coverage(key_id))
