"""Exchanges between processes of a world: a request over, its reply back, or a failure when the time is over.

Whoever sits on the path may answer in the other's place: a false reply comes first and is all the caller hears.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from swimcluster.address import Address
from swimcluster.testing.network import MILLISECOND
from swimcluster.testing.node import Input, Node

if TYPE_CHECKING:
    from swimcluster.testing.world import World

REFUSED_AFTER_NS = 1 * MILLISECOND
"""A connection to a host without a listener is refused after about a round trip."""
FORGED_AFTER_NS = 100_000
"""A false reply comes sooner than a true one, which then has nobody that waits for it."""
FORGED_MAX = 64
"""False replies that wait for one node's next requests; the oldest go first."""


class Exchanges:
    """Carries the exchanges of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._forged: dict[str, deque[Input]] = {}

    def forge(self, destination: Address, reply: Input) -> None:
        """Let `reply` answer the next request of whoever is at `destination`, before the one who is asked can."""
        holder = self._world.network.holder(destination)
        if holder is None:
            self._world.network.counts["unbound"] += 1
            return
        self._forged.setdefault(holder, deque(maxlen=FORGED_MAX)).append(reply)

    def dial(self, node: Node, item: Any) -> None:
        """Send a request on its way; its outcome comes back within its time-out."""
        world = self._world
        node.sent_exchanges += 1
        node.dials.add(item.id)
        failure = Input("failure", None, b"", item.id)
        world.at(world.now + item.timeout_ns, self._return, node, node.life, failure)
        if node.send_fails:
            world.at(world.now, self._return, node, node.life, failure)
            return
        network = world.network
        network.record(node.address, item.destination, item.data, "request")
        forged = self._forged.get(node.name)
        if forged:
            false = forged.popleft()._replace(id=item.id)
            world.at(world.now + FORGED_AFTER_NS, self._return, node, node.life, false)
        holder = network.holder(item.destination)
        if holder is None:
            return
        there = network.segment(node.name, holder)
        back = network.segment(holder, node.name)
        if there is None or back is None:
            return
        request = Input("request", node.address, item.data, item.id, (node, node.life, item.id))
        world.at(world.now + there + back + there, self._connect, item.destination, request, failure)

    def _connect(self, destination: Address, request: Input, failure: Input) -> None:
        """A request has crossed: give it to whoever listens there, or refuse it."""
        world = self._world
        holder = world.network.holder(destination)
        target = None if holder is None else world.nodes[holder]
        if target is not None and target.machine is not None:
            world.accept(target, request)
        elif target is not None and request.caller is not None:
            node, life, _ = request.caller
            world.at(world.now + REFUSED_AFTER_NS, self._return, node, life, failure)

    def reply(self, node: Node, request: Input, reply: Any) -> None:
        """Send the answer to a request back to its caller, if there is one (a replayed request has none)."""
        world = self._world
        if request.caller is None:
            return
        owed = getattr(reply, "request_id", None)
        if owed is not None:
            node.owed[owed] = request
            return
        caller, life, number = request.caller
        if isinstance(reply, bytes):
            world.network.record(node.address, caller.address, reply, "reply")
        path = world.network.path(node.name, caller.name)
        if path.half_open and world.network.luck(node.name).random() < path.half_open:
            return
        delay = world.network.segment(node.name, caller.name)
        if delay is None:
            return
        answered = isinstance(reply, bytes)
        answer = Input("reply" if answered else "failure", node.address, reply if answered else b"", number)
        world.at(world.now + delay + path.exchange_delay_ns, self._return, caller, life, answer)

    def _return(self, node: Node, life: int, item: Input) -> None:
        """Bring the outcome of an exchange to its caller, unless that life is over or has an outcome already."""
        world = self._world
        if node.life == life and node.machine is not None and item.id in node.dials:
            world.accept(node, item)
