"""A few machines on a bench: a network in virtual time, small enough to read, driven by the tests step by step."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from swimcluster.address import Address
from swimcluster.codec import encode_message
from swimcluster.config import Config
from swimcluster.events import Event
from swimcluster.member import MemberState
from swimcluster.swim import Swim
from swimcluster.transmits import Datagram, Exchange, PendingReply

MS = 1_000_000
S = 1_000 * MS
KEY = b"sixteen bytes at least"


def address(port: int) -> Address:
    return Address("10.0.0.1", port)


def machine(name: str, port: int, *, now: int = 0, epoch: int = 1, seed: int = 0, **settings: Any) -> Swim:
    """Return one machine; settings are those of Config, `preset`, `seeds` as ports, `metadata`, `instance`."""
    draws = random.Random(f"{name} {port} {seed}")
    preset = settings.pop("preset", "lan")
    metadata = settings.pop("metadata", b"of " + name.encode())
    instance = settings.pop("instance", None) or draws.randbytes(8)
    settings.setdefault("keys", [KEY])
    settings["seeds"] = [address(seed_port) for seed_port in settings.get("seeds", ())]
    config = getattr(Config, preset)(name=name, advertise=address(port), **settings)
    return Swim(config, now=now, epoch=epoch, instance=instance, rng=draws, metadata=metadata)


class Bench:
    """Machines by port, one latency, and hooks to drop, alter or hear what is sent."""

    def __init__(self, *, seed: int = 0, loss: float = 0.0, latency: int = MS, tells_source: bool = True) -> None:
        self.now = S
        self.rng = random.Random(seed)
        self.seed = seed
        self.loss = loss
        self.latency = latency
        self.tells_source = tells_source
        self.machines: dict[int, Swim] = {}
        self.events: list[tuple[int, str, Event]] = []
        self.sent: list[tuple[int, int, Datagram | Exchange]] = []
        self.cut: Callable[[int, int], bool] = lambda source, destination: False
        self.resolve: Callable[[int], int] = lambda port: port
        """Stands for DNS: which port a destination means now. Asked at each exchange, as a transport would."""
        self.answers: Callable[[bytes], bytes] = lambda payload: b"re: " + payload
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._births = 0
        self._wakes: dict[int, int] = {}
        self.frozen: set[int] = set()

    # Members ----------------------------------------------------------------------------------------------------

    def add(self, name: str, port: int, **settings: Any) -> Swim:
        self._births += 1  # Each process draws another instance, also in the same place.
        swim = machine(name, port, now=self.now, seed=1000 * self.seed + self._births, **settings)
        self.machines[port] = swim
        self._wakes.pop(port, None)
        self.flush(port)
        return swim

    def kill(self, port: int) -> None:
        del self.machines[port]

    def cluster(self, size: int, **settings: Any) -> list[Swim]:
        """Start a, b, c, … on ports 1, 2, 3, …, all joining through port 1, and let them find each other."""
        names = "abcdefghijklmnopqrstuvwxyz"
        swims = [self.add(names[i], i + 1, seeds=[1] if i else [], **settings) for i in range(size)]
        self.run(5.0)
        assert all(len(swim.members()) == size for swim in swims), "the bench's cluster did not form"
        self.events.clear()
        self.sent.clear()
        return swims

    def do(self, port: int, call: Callable[[Swim, int], Any]) -> Any:
        result = call(self.machines[port], self.now)
        self.flush(port)
        return result

    # Time -------------------------------------------------------------------------------------------------------

    def run(self, seconds: float, *, until: Callable[[], bool] | None = None) -> float:
        """Run for so long, or until the claim holds; return the seconds it took."""
        start = self.now
        end = start + round(seconds * S)
        while self._heap and self._heap[0][0] <= end:
            at, _, action = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            action()
            if until is not None and until():
                return (self.now - start) / S
        self.now = end
        assert until is None, f"it did not come true within {seconds} s (seed {self.seed})"
        return seconds

    def freeze(self, port: int) -> None:
        """Stop a process as SIGSTOP would: what arrives waits, deadlines pass."""
        self.frozen.add(port)

    def thaw(self, port: int) -> None:
        self.frozen.discard(port)
        self._wakes.pop(port, None)
        self.flush(port)

    def _at(self, at: int, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, action))

    def _wake(self, port: int, swim: Swim, deadline: int) -> None:
        if self.machines.get(port) is swim and self._wakes.get(port) == deadline and port not in self.frozen:
            del self._wakes[port]
            swim.advance(self.now)
            after = swim.next_deadline()
            assert after is None or after > self.now, "a deadline is not in the future after advance"
            self.flush(port)

    # Carrying ---------------------------------------------------------------------------------------------------

    def flush(self, port: int) -> None:
        """Carry off what a machine has to send and say."""
        swim = self.machines.get(port)
        if swim is None:
            return
        name = swim.local.name
        self.events += [(self.now, name, event) for event in swim.events()]
        for transmit in swim.transmits():
            self.sent.append((self.now, port, transmit))
            if isinstance(transmit, Datagram):
                self._datagram(port, transmit)
            else:
                self._exchange(port, swim, transmit)
        deadline = swim.next_deadline()
        if deadline is not None and self._wakes.get(port) != deadline:
            self._wakes[port] = deadline
            self._at(max(deadline, self.now), lambda: self._wake(port, swim, deadline))

    def _datagram(self, port: int, datagram: Datagram) -> None:
        assert len(datagram.data) <= 1400, "a datagram is over the budget"
        target = datagram.destination.port
        if self.rng.random() >= self.loss and not self.cut(port, target):
            self._at(self.now + self.latency, lambda: self.deliver(target, datagram.data, source=port))

    def deliver(self, port: int, data: bytes, *, source: int = 0) -> None:
        """Give a machine a datagram now."""
        swim = self.machines.get(port)
        if swim is None:
            return
        if port in self.frozen:
            self._at(self.now + 100 * MS, lambda: self.deliver(port, data, source=source))
            return
        swim.receive_datagram(self.now, address(source) if self.tells_source else None, data)
        self.flush(port)

    def _exchange(self, port: int, swim: Swim, exchange: Exchange) -> None:
        target = self.resolve(exchange.destination.port)

        def fail() -> None:
            if self.machines.get(port) is swim:
                swim.exchange_failed(self.now, exchange.id)
                self.flush(port)

        def reply(data: bytes) -> None:
            if self.machines.get(port) is swim:
                swim.exchange_replied(self.now, exchange.id, data)
                self.flush(port)

        def arrive() -> None:
            data = self.request(target, exchange.data, source=port)
            if data is None or self.cut(target, port):
                self._at(self.now + self.latency, fail)
            else:
                self._at(self.now + self.latency, lambda: reply(data))

        if self.cut(port, target) or target in self.frozen:
            self._at(self.now + exchange.timeout_ns, fail)
        else:
            self._at(self.now + self.latency, arrive)

    def request(self, port: int, data: bytes, *, source: int = 0) -> bytes | None:
        """Give a machine an exchange request now and return the reply; application requests get `answers`."""
        swim = self.machines.get(port)
        if swim is None:
            return None
        answer = swim.exchange_received(self.now, address(source) if self.tells_source else None, data)
        if isinstance(answer, PendingReply):
            events = swim.events()
            self.events += [(self.now, swim.local.name, event) for event in events]
            payload = next(e.payload for e in events if getattr(e, "request_id", None) == answer.request_id)  # type: ignore[union-attr]
            answer = swim.respond(self.now, answer.request_id, self.answers(payload))
        self.flush(port)
        return answer

    # Reading ----------------------------------------------------------------------------------------------------

    def view(self, port: int) -> dict[str, MemberState]:
        return {member.name: member.state for member in self.machines[port].members()}

    def views(self) -> list[list[str]]:
        return [[member.name for member in swim.members()] for swim in self.machines.values()]

    def all_see(self, *names: str) -> bool:
        wanted = sorted(names)
        return all(
            [member.name for member in swim.members() if member.state is MemberState.ALIVE] == wanted
            for swim in self.machines.values()
        )

    def heard(self, kind: type, *, at: str | None = None) -> list[Any]:
        return [event for _, name, event in self.events if isinstance(event, kind) and at in {None, name}]


def tell(bench: Bench, port: int, *messages: object, by: int = 2) -> None:
    """Let the machine at `by` send these messages to the one at `port`."""
    encoded = [encode_message(message) for message in messages]  # type: ignore[arg-type]
    bench.deliver(port, bench.machines[by].core.pack_datagram(encoded, 1, fill=False))
