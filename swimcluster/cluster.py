"""Membership for a trio program: `async with open_cluster(config) as cluster`.

The protocol runs beside the body of the `async with`, in tasks the context owns; leaving it tells the others,
whatever ended the body. Timeouts are the caller's cancel scopes. No method blocks the protocol.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from swimcluster.address import Address
from swimcluster.advertise import advertised_address
from swimcluster.arguments import address_of, check_arguments
from swimcluster.boot_clock import boot_now
from swimcluster.config import Config
from swimcluster.config_checks import check_list
from swimcluster.driver import Clock, RequestHandler
from swimcluster.errors import ConfigError
from swimcluster.member import Member
from swimcluster.nursery import open_plain_nursery
from swimcluster.recorder import INPUTS_MAX
from swimcluster.rotation import KeyRotation
from swimcluster.session import Session
from swimcluster.statistics import Statistics
from swimcluster.subscription import Subscription
from swimcluster.swim import Swim
from swimcluster.transmits import JoinStatus, LeaveProgress
from swimcluster.transport import Transport
from swimcluster.transport.udp import open_udp_transport

DEFAULT_PORT = 7946
"""Where a member listens that is told neither to bind nor to advertise; memberlist's port."""
JOIN_WAIT_S = 3.0
"""Longest wait of `open_cluster` for a first seed; the member then starts alone and keeps trying."""


@asynccontextmanager
async def open_cluster(
    config: Config,
    *,
    transport: Transport | None = None,
    metadata: bytes = b"",
    on_request: RequestHandler | None = None,
    join_wait_s: float = JOIN_WAIT_S,
    recorded_inputs_max: int = INPUTS_MAX,
    clock: Clock = boot_now,
    rng: random.Random | None = None,
) -> AsyncIterator[Cluster]:
    """Take part in a cluster until the body ends, then leave it.

    Seeds that do not answer are no error: the member starts alone and keeps trying. The leave on the way out is
    shielded from cancellation and bounded by `config.leave_timeout_s`.

    Args:
        transport: carries the bytes and stays open afterwards; None binds UDP and TCP at `config.bind`.
        metadata: first metadata, at most `config.metadata_bytes_max` bytes.
        on_request: answers what members ask with `Cluster.request`; None answers nothing.
        join_wait_s: longest wait for the first seed before the body begins.
        recorded_inputs_max: inputs kept by the flight recorder, between one and two times as many; 0 for none.
        clock: nanoseconds that never go back; tests give a virtual one.
        rng: randomness of the protocol; tests give a seeded one.

    Raises:
        ConfigError: a setting or an argument is wrong, or the address cannot be bound; nothing was started.
        PayloadTypeError: metadata that is not bytes; nothing was started.
        PayloadTooLargeError: metadata over its limit; nothing was started.
        NameInUseError: a live member answers under this name, at the start or (cancelling the body) later on.
    """
    check_arguments(config, on_request, join_wait_s)
    async with AsyncExitStack() as stack:
        if transport is None:
            transport = await stack.enter_async_context(
                open_udp_transport(
                    config.bind or config.advertise or Address("", DEFAULT_PORT),
                    exchange_bytes_max=config.exchange_bytes_max,
                    exchange_timeout_s=config.exchange_timeout_s,
                )
            )
        config = config.with_advertise(config.advertise or advertised_address(transport.local_address, config.seeds))
        session = Session(config, transport, clock, on_request)
        await session.start(metadata, rng or random.Random(secrets.randbits(256)), recorded_inputs_max)
        async with open_plain_nursery() as nursery:
            try:
                await session.run_in(nursery)
                await session.wait_until_joined(join_wait_s)
                yield Cluster(session)
            finally:
                await session.close()
                nursery.cancel_scope.cancel()


class Cluster:
    """This node's view of its cluster and its say in it. Made by `open_cluster`; for one trio program only."""

    def __init__(self, session: Session) -> None:
        self.config = session.config
        self.keyring = KeyRotation(self)
        """Installs, uses and removes cluster keys at run time."""
        self._session = session

    def __repr__(self) -> str:
        """Return the name and address, for a log; it works on a closed cluster too."""
        return f"<Cluster member {self.config.name!r} at {self.config.advertise}>"

    # Views ------------------------------------------------------------------------------------------------------

    @property
    def local(self) -> Member:
        """This member."""
        return self.machine.local

    @property
    def members(self) -> tuple[Member, ...]:
        """The live members, suspects and this one included, sorted by name; a frozen picture of this moment."""
        return self.machine.members()

    @property
    def departed(self) -> tuple[Member, ...]:
        """The dead and left members still remembered, sorted by name."""
        return self.machine.departed()

    def member(self, name: str) -> Member | None:
        """Return one member, live or departed; None when unknown."""
        return self.machine.member(name)

    @property
    def isolated(self) -> bool:
        """Whether this node hears nobody although it knows, or was told, of others. Its own opinion."""
        return self.machine.isolated

    @property
    def join_status(self) -> JoinStatus:
        """Where this node stands with its cluster."""
        return self.machine.join_status

    def statistics(self) -> Statistics:
        """Return a copy of the counters and gauges; `swimcluster.prometheus_text` writes them out."""
        return self.machine.statistics()

    @property
    def transport_counters(self) -> object:
        """What the transport counted (`swimcluster.transport.udp_datagrams.UdpCounters`); None where it counts nothing."""
        return getattr(self._session.transport, "counters", None)

    # Commands that return at once -------------------------------------------------------------------------------

    def set_metadata(self, data: bytes) -> bool:
        """Replace this member's metadata and spread it.

        Returns:
            whether it goes out: False, with nothing changed, once this member leaves or its name is taken.
        Raises:
            PayloadTypeError: not bytes; nothing was changed.
            PayloadTooLargeError: over `config.metadata_bytes_max`; nothing was changed.
        """
        return bool(self.feed("set_metadata", data))

    def set_vitals(self, data: bytes) -> bool:
        """Replace this member's vitals; the newest go out with every packet, one value per probe interval.

        Returns:
            whether it goes out: False, with nothing changed, once this member leaves or its name is taken.
        Raises:
            PayloadTypeError: not bytes; nothing was changed.
            PayloadTooLargeError: over `config.vitals_bytes_max`; nothing was changed.
        """
        return bool(self.feed("set_vitals", data))

    def readvertise(self, address: Address | str) -> bool:
        """Tell the others that this member is now reached at `address`.

        Returns:
            whether it goes out: False, with nothing changed, once this member leaves or its name is taken.
        Raises:
            ConfigError: not an address, or one that nobody could connect to; nothing was changed.
        """
        return bool(self.feed("readvertise", address_of("the advertised address", address)))

    def send(self, name: str, payload: bytes) -> None:
        """Send a datagram payload to a live member; it may be lost. The other side gets a `UserMessage`.

        Raises:
            PayloadTypeError: not bytes, or a name that is not text; nothing was sent.
            PayloadTooLargeError: over `config.user_datagram_bytes_max`; nothing was sent.
            ExchangeError: no such live member, this member itself, or this one takes no part any more; nothing was sent.
        """
        self.feed("send", name, payload)

    def broadcast(self, payload: bytes) -> bool:
        """Spread a payload to all members in the spare room of packets. They get a `BroadcastReceived`.

        Returns:
            whether it goes out: False, with nothing sent, once this member leaves or its name is taken.
        Raises:
            PayloadTypeError: not bytes; nothing was sent.
            PayloadTooLargeError: over `config.broadcast_bytes_max`; nothing was sent.
        """
        return bool(self.feed("broadcast", payload))

    def subscribe(self) -> Subscription:
        """Return a stream of events that begins with a `Snapshot`: `async with cluster.subscribe() as events`.

        A reader that leaves more than `config.event_queue_max` events waiting gets `EventsLost(n)` and a fresh `Snapshot`.

        Raises:
            ClosedError: the cluster was closed, or has too many subscriptions already.
        """
        return self._session.subscribe()

    def write_recording(self, path: Path) -> None:
        """Write the flight recorder's inputs to a file for `python -m swimcluster.replay`; blocks for the disk.

        The file holds no key; payloads and addresses are in it, so only its owner may read it.

        Raises:
            ConfigError: this cluster was opened with `recorded_inputs_max=0`.
            OSError: the disk refused.
        """
        if self._session.recorder is None:
            raise ConfigError("nothing was recorded: open the cluster with recorded_inputs_max above 0")
        self._session.recorder.write(path)

    # Commands that wait -----------------------------------------------------------------------------------------

    async def wait_for(self, predicate: Callable[[tuple[Member, ...]], bool]) -> tuple[Member, ...]:
        """Wait until the live members satisfy `predicate`, asked at each change; returns them.

        Raises:
            ClosedError: the cluster was closed meanwhile.
        """
        await trio.lowlevel.checkpoint()
        while not predicate(members := self.members):
            await self._session.changes.park()
        return members

    async def join(self, seeds: Sequence[Address | str]) -> Address:
        """Add seeds and try these now; returns the one that let this node in.

        Raises:
            ConfigError: not a list, or one of them not an address; nothing was changed.
            JoinError: none answered in this round, and the node goes on trying; or none was given, or it has left.
            NameInUseError: raised by `open_cluster`, which ends the body.
        """
        check_list("seeds", "addresses", seeds)
        return await self._session.join([address_of("a seed", seed) for seed in seeds])

    async def leave(self) -> LeaveProgress:
        """Tell the others that this node leaves and wait until that is done; idempotent. Cancel to wait no longer.

        There is no way back: to take part again, open another cluster. Until the body ends this node still shows
        what it knew, and requests under way go on. From the call on `send` and `request` raise ExchangeError, and what
        is set or broadcast returns False: nothing of it is told to anybody.

        Returns:
            how many confirmed that they know, and of how many.
        """
        return await self._session.leave()

    async def request(self, name: str, payload: bytes) -> bytes:
        """Ask a live member something in one exchange and return the answer of its `on_request`.

        Raises:
            PayloadTypeError: not bytes, or a name that is not text; nothing was sent.
            PayloadTooLargeError: over `config.request_bytes_max`; nothing was sent.
            ExchangeError: no such live member, this member has left, or has 64 exchanges under way: nothing was sent, and
                it says so; or no reply: whether it was handled is then not known.
        """
        return await self._session.request(name, payload)

    # For the parts of this package ------------------------------------------------------------------------------

    @property
    def machine(self) -> Swim:
        """The protocol machine, to look at.

        Raises:
            ClosedError: the cluster was closed.
        """
        return self._session.machine

    def feed(self, call: str, *arguments: Any) -> Any:
        """Give the machine one command and carry out what follows from it.

        Raises:
            ClosedError: the cluster was closed.
        """
        return self._session.feed(call, *arguments)
