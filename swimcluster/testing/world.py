"""A world in virtual time: nodes, and a network between them.

A run is a function of its seed and what is asked of it: no wall clock, no threads, no event loop, no order of sets or
hashes. `World.digest()` is equal for equal runs, in every interpreter and under every PYTHONHASHSEED.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from swimcluster.address import Address
from swimcluster.testing.exchanges import Exchanges
from swimcluster.testing.machine import Machine
from swimcluster.testing.network import SECOND, Network, Recorded
from swimcluster.testing.node import INBOX_MAX, Input, Node
from swimcluster.testing.observer import Observer
from swimcluster.testing.randomness import fork
from swimcluster.testing.virtual_time import VirtualTime

SPINS_MAX = 1000
"""Wakes in a row at one time after which a machine is called stuck."""

Boot = Callable[[Node, int], Machine]
"""Makes a node's machine for one life; takes the node and the time on its clock."""


class StuckError(Exception):
    """A machine asks to be woken now, again and again."""


class World(VirtualTime):
    """Runs machines against each other in virtual time. Times are nanoseconds since the world began."""

    def __init__(
        self, *, seed: int, network: Network | None = None, observers: Iterable[Observer] = (), drift_ppm: int = 0
    ) -> None:
        super().__init__()
        self.seed = seed
        self.network = Network(seed=seed) if network is None else network
        self.nodes: dict[str, Node] = {}
        self._observers: list[Observer] = []
        self.steps = 0
        self.drift_ppm = drift_ppm
        self._hash = hashlib.blake2b(digest_size=16)
        self._clocks = fork(seed, "clocks")
        self._exchanges = Exchanges(self)
        self._index()
        for observer in observers:
            self.watch(observer)

    # Observers

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Who watches, in order."""
        return tuple(self._observers)

    def watch(self, observer: Observer) -> None:
        """Let `observer` see what happens from now on."""
        self._observers.append(observer)
        self._index()

    def unwatch(self, observer: Observer) -> None:
        """Let it see no more."""
        self._observers.remove(observer)
        self._index()

    def _index(self) -> None:
        """Keep the methods that do something, so that the others cost nothing on each step."""

        def those(name: str) -> list[Any]:
            plain = getattr(Observer, name)
            return [getattr(one, name) for one in self._observers if getattr(type(one), name) is not plain]

        self._on_booted, self._on_stopped, self._on_noted = those("booted"), those("stopped"), those("noted")
        self._on_received, self._on_advanced, self._on_stepped = those("received"), those("advanced"), those("stepped")

    # The record

    def digest(self) -> str:
        """A hash over every input to every machine so far, with its time."""
        return self._hash.hexdigest()

    def note(self, text: str) -> None:
        """Put a remark on the record: a fault began, a phase ended."""
        self._hash.update(f"{self.now} {text}".encode())
        for noted in self._on_noted:
            noted(self, text)

    # Processes

    def add(self, name: str, address: Address) -> Node:
        """A place for a process; `boot` starts it. Clocks of different nodes are far apart on purpose."""
        if name in self.nodes:
            raise ValueError(f"a node named {name!r} is there already")
        node = Node(name, len(self.nodes), address, clock_offset=self._clocks.randrange(1 << 50))
        if self.drift_ppm:
            node.clock_ppm = self._clocks.randint(-self.drift_ppm, self.drift_ppm)
        self.nodes[name] = node
        return node

    def boot(self, node: Node, make: Boot | None = None) -> Node:
        """Start a process, by default as it was started last time."""
        if node.machine is not None:
            raise ValueError(f"{node.name} runs already")
        make = node.boot = make or node.boot
        node.life += 1
        node.paused = node.held = False
        node.busy_until, node.wake_at = 0, None
        self.network.bind(node.address, node.name)
        self._hash.update(f"{self.now} boot {node.name}".encode())
        node.machine = make(node, node.local(self.now))
        for booted in self._on_booted:
            booted(self, node)
        self._settle(node, "call")
        return node

    def stop(self, node: Node, *, host_down: bool = False) -> None:
        """End a process at once. Its connections break; with `host_down` nothing answers at its address."""
        self._hash.update(f"{self.now} stop {node.name}".encode())
        node.machine = None
        node.inbox.clear()
        node.outbox.clear()
        node.dials.clear()
        node.owed.clear()
        if host_down:
            self.network.unbind(node.address, node.name)
        for stopped in self._on_stopped:
            stopped(self, node)

    def call(self, node: Node, action: Callable[[Any, int], Any]) -> Any:
        """Use a machine as its owner would: `action(machine, now)`; what it sends is sent."""
        machine = node.machine
        if machine is None:
            raise ValueError(f"{node.name} does not run")
        result = action(machine, node.local(self.now))
        self._settle(node, "call")
        return result

    def pause(self, node: Node) -> None:
        """Stop a process as SIGSTOP does: input waits in the buffers, no timer runs."""
        node.paused = True

    def resume(self, node: Node, *, lose_input: bool = False) -> None:
        """Let a paused process go on: what waits is read first, in order, then timers run late."""
        if lose_input:
            # What was sent to it is gone. That an exchange of its own failed is found out by its driver: nobody sends it.
            failures = [item for item in node.inbox if item.kind == "failure"]
            node.inbox.clear()
            node.inbox.extend(failures)
        node.paused = False
        self._drain(node, node.life)
        self._wake(node, node.life, None)

    def hold(self, node: Node) -> None:
        """Block a process's input and output while its timers run (Lifeguard §V)."""
        node.held = True

    def release(self, node: Node) -> None:
        """End a hold: what was to be sent goes out, then what has come in is read."""
        node.held = False
        while node.outbox:
            self._transmit(node, node.outbox.popleft())
        self._drain(node, node.life)

    def move(self, node: Node, address: Address, *, keep_old: bool = False) -> None:
        """Change where a node is reached and seen to send from; the process is not told (as behind a NAT)."""
        if not keep_old:
            self.network.unbind(node.address, node.name)
        node.address = address
        self.network.bind(address, node.name)

    # Delivery

    def inject(self, recorded: Recorded, *, source: Address | None = None) -> None:
        """Deliver a recorded message once more, from its old source or another; a reply, to the next request made there."""
        self.network.counts["replayed"] += 1
        item = Input(recorded.kind, recorded.source if source is None else source, recorded.data)
        if recorded.kind == "reply":
            self._exchanges.forge(recorded.destination, item)
            return
        self._arrive(recorded.destination, item, "", -1)

    def _arrive(self, destination: Address, item: Input, holder: str, bindings: int) -> None:
        """Give an input to whoever is at its destination: `holder`, unless addresses have changed hands since."""
        name = holder if bindings == self.network.bindings else self.network.holder(destination)
        node = None if name is None else self.nodes[name]
        if node is None or node.machine is None:
            self.network.counts["unbound"] += 1
            return
        self.accept(node, item)

    def accept(self, node: Node, item: Input) -> None:
        """Give a process an input that has come to it, or put it into its buffer while it does not read."""
        if node.paused or node.held or node.inbox or node.busy_until > self.now:
            if len(node.inbox) >= INBOX_MAX and item.kind != "failure":
                node.overflowed += 1
                return
            node.inbox.append(item)
            if len(node.inbox) == 1 and not (node.paused or node.held):
                self.at(node.busy_until, self._drain, node, node.life)
            return
        self._handle(node, item)

    def _drain(self, node: Node, life: int) -> None:
        while node.inbox and node.life == life and node.machine is not None and not (node.paused or node.held):
            if node.busy_until > self.now:
                self.at(node.busy_until, self._drain, node, life)
                return
            self._handle(node, node.inbox.popleft())

    def _handle(self, node: Node, item: Input) -> None:
        machine: Any = node.machine
        local, kind = node.local(self.now), item.kind
        for received in self._on_received:
            received(self, node, item)
        self._hash.update(b"%d %d %s " % (self.now, node.index, kind.encode()) + item.data)
        try:
            if kind == "datagram":
                node.received_datagrams += 1
                node.received_bytes += len(item.data)
                machine.receive_datagram(local, item.source, item.data)
            elif kind == "request":
                reply = machine.exchange_received(local, item.source, item.data)
                self._exchanges.reply(node, item, reply)
            elif item.id in node.dials:
                node.dials.discard(item.id)
                if kind == "reply":
                    machine.exchange_replied(local, item.id, item.data)
                else:
                    machine.exchange_failed(local, item.id)
        except Exception as error:
            error.add_note(f"in {node.name}, {kind} at {self.now / SECOND:.6f} s of the world with seed {self.seed}")
            raise
        if node.service_ns:
            node.busy_until = max(node.busy_until, self.now) + node.service_ns
        self._settle(node, kind)

    def _settle(self, node: Node, kind: str) -> None:
        """Carry off what a machine sends and says, and see when it wants to be woken."""
        machine = node.machine
        if machine is None:
            return
        self.steps += 1
        sent = list(machine.transmits())
        if node.held:
            node.outbox.extend(sent[: INBOX_MAX - len(node.outbox)])
        else:
            for item in sent:
                self._transmit(node, item)
        events = list(machine.events())
        for stepped in self._on_stepped:
            stepped(self, node, kind, sent, events)
        deadline = machine.next_deadline()
        if deadline is not None:
            self._wake_at(node, deadline)

    def _wake_at(self, node: Node, deadline: int) -> None:
        """See to it that a machine is woken when its clock shows `deadline`, or sooner."""
        wake = node.world(deadline) if node.clock_ppm else deadline - node.clock_offset
        if node.wake_at is None or wake < node.wake_at:
            node.wake_at = wake = max(self.now, wake)
            self.at(wake, self._wake, node, node.life, wake)

    def _wake(self, node: Node, life: int, due: int | None) -> None:
        """Advance a machine whose time has come; `due` tells a wake that was overtaken by an earlier one."""
        machine = node.machine
        if node.life != life or machine is None or node.paused or (due is not None and node.wake_at != due):
            return
        if node.busy_until > self.now:
            node.wake_at = node.busy_until
            self.at(node.busy_until, self._wake, node, life, node.busy_until)
            return
        node.wake_at = None
        local = node.local(self.now)
        deadline = machine.next_deadline()
        if deadline is None:
            return
        if deadline > local:  # What it was to be woken for was called off.
            self._wake_at(node, deadline)
            return
        self._hash.update(b"%d %d wake" % (self.now, node.index))
        try:
            machine.advance(local)
        except Exception as error:
            error.add_note(f"in {node.name}, advance at {self.now / SECOND:.6f} s, seed {self.seed}")
            raise
        self._check_progress(node, local)
        self._settle(node, "wake")

    def _check_progress(self, node: Node, local: int) -> None:
        machine: Any = node.machine
        spins, deadline = 0, machine.next_deadline()
        for advanced in self._on_advanced:
            advanced(self, node, local, deadline)
        while (deadline := machine.next_deadline()) is not None and deadline <= local:
            spins += 1
            if spins > SPINS_MAX:
                raise StuckError(f"{node.name} wants to be woken at {deadline}, and it is {local} (seed {self.seed})")
            machine.advance(local)

    # Sending

    def _transmit(self, node: Node, item: Any) -> None:
        if hasattr(item, "timeout_ns"):
            self._exchanges.dial(node, item)
            return
        node.sent_datagrams += 1
        node.sent_bytes += len(item.data)
        if node.send_fails:
            failed = getattr(node.machine, "send_failed", None)
            if failed is not None:
                self.at(self.now, self._send_failed, node, node.life, item.destination)
            return
        network = self.network
        network.record(node.address, item.destination, item.data, "datagram")
        holder = network.holder(item.destination)
        if holder is None:
            network.counts["unbound"] += 1
            return
        source, bindings = node.address, network.bindings
        for delay, data in network.datagram(node.name, holder, item.data, self.now):
            self.at(self.now + delay, self._arrive, item.destination, Input("datagram", source, data), holder, bindings)

    def _send_failed(self, node: Node, life: int, destination: Address) -> None:
        if node.life == life and node.machine is not None:
            machine: Any = node.machine
            machine.send_failed(node.local(self.now), destination)
            self._settle(node, "failure")

    def answer(self, node: Node, life: int, request_id: int, payload: bytes) -> None:
        """Let a node's application answer a request that its machine has handed on, if that life still runs."""
        machine: Any = node.machine
        if node.life == life and machine is not None:
            reply = machine.respond(node.local(self.now), request_id, payload)
            self._exchanges.reply(node, node.owed.pop(request_id, Input("request", None, b"")), reply)
            self._settle(node, "call")
