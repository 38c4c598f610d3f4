"""What the thread-safe faces of a cluster have alike: everything of `Cluster` that does not wait."""

from __future__ import annotations

import copy
from pathlib import Path

from swimcluster.address import Address
from swimcluster.config import Config
from swimcluster.member import Member
from swimcluster.rotation import Coverage
from swimcluster.statistics import Statistics
from swimcluster.transmits import JoinStatus
from swimcluster.trio_thread import TrioThread


class ThreadedKeyRotation:
    """The keys of this node, from any thread; `keyring` of a threaded or asyncio cluster."""

    def __init__(self, thread: TrioThread) -> None:
        self._thread = thread

    def install(self, key: bytes) -> bytes:
        """Accept a further key; see `KeyRotation.install`."""
        return self._thread.ask(lambda cluster: cluster.keyring.install(key))

    def use(self, key_id: bytes) -> None:
        """Sign with an installed key; see `KeyRotation.use`."""
        self._thread.ask(lambda cluster: cluster.keyring.use(key_id))

    def remove(self, key_id: bytes) -> None:
        """Forget a key that does not sign; see `KeyRotation.remove`."""
        self._thread.ask(lambda cluster: cluster.keyring.remove(key_id))

    @property
    def ids(self) -> tuple[bytes, ...]:
        """The ids of the installed keys; the first is the one that signs."""
        return self._thread.ask(lambda cluster: cluster.keyring.ids)

    def coverage(self, key_id: bytes) -> Coverage:
        """Return which live members hold the key."""
        return self._thread.ask(lambda cluster: cluster.keyring.coverage(key_id))


class ThreadSafeCluster:
    """A cluster that may be used from any thread; what a call returns is frozen."""

    def __init__(self, thread: TrioThread) -> None:
        self._thread = thread
        self.keyring = ThreadedKeyRotation(thread)
        """Installs, uses and removes cluster keys at run time."""

    def __repr__(self) -> str:
        """Return the name, for a log; it works on a closed cluster too."""
        return f"<{type(self).__name__} member {self._thread.name!r}>"

    @property
    def config(self) -> Config:
        """The settings this node runs with; its address is the one it advertises."""
        return self._thread.ask(lambda cluster: cluster.config)

    @property
    def local(self) -> Member:
        """This member."""
        return self._thread.ask(lambda cluster: cluster.local)

    @property
    def members(self) -> tuple[Member, ...]:
        """The live members, sorted by name."""
        return self._thread.ask(lambda cluster: cluster.members)

    @property
    def departed(self) -> tuple[Member, ...]:
        """The dead and left members still remembered."""
        return self._thread.ask(lambda cluster: cluster.departed)

    @property
    def isolated(self) -> bool:
        """Whether this node hears nobody although it knows of others."""
        return self._thread.ask(lambda cluster: cluster.isolated)

    @property
    def join_status(self) -> JoinStatus:
        """Where this node stands with its cluster."""
        return self._thread.ask(lambda cluster: cluster.join_status)

    def member(self, name: str) -> Member | None:
        """Return one member; None when unknown."""
        return self._thread.ask(lambda cluster: cluster.member(name))

    def statistics(self) -> Statistics:
        """Return a copy of the counters and gauges."""
        return self._thread.ask(lambda cluster: cluster.statistics())

    @property
    def transport_counters(self) -> object:
        """What the transport counted until now; see `Cluster.transport_counters`."""
        return self._thread.ask(lambda cluster: copy.copy(cluster.transport_counters))

    def set_metadata(self, data: bytes) -> bool:
        """Replace this member's metadata; see `Cluster.set_metadata`."""
        return self._thread.ask(lambda cluster: cluster.set_metadata(data))

    def set_vitals(self, data: bytes) -> bool:
        """Replace this member's vitals; see `Cluster.set_vitals`."""
        return self._thread.ask(lambda cluster: cluster.set_vitals(data))

    def readvertise(self, address: Address | str) -> bool:
        """Tell the others a new address of this member; see `Cluster.readvertise`."""
        return self._thread.ask(lambda cluster: cluster.readvertise(address))

    def send(self, name: str, payload: bytes) -> None:
        """Send a datagram payload to a live member; see `Cluster.send`."""
        self._thread.ask(lambda cluster: cluster.send(name, payload))

    def broadcast(self, payload: bytes) -> bool:
        """Spread a payload to all members; see `Cluster.broadcast`."""
        return self._thread.ask(lambda cluster: cluster.broadcast(payload))

    def write_recording(self, path: Path) -> None:
        """Write the flight recorder's inputs to a file; see `Cluster.write_recording`."""
        self._thread.ask(lambda cluster: cluster.write_recording(path))
