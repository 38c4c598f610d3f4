"""Two to four machines under any order of trouble: safety at each step, one view after calm."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swimcluster.member import Claim, MemberState
from swimcluster.transmits import Datagram, JoinStatus
from tests.fakes.swim_bench import Bench, address

NAMES = "abcd"
DNS = 9000
"""Ports from here on stand for host names, in the order of NAMES."""
CALM_S = 150.0
"""Longer than the longest suspicion at n = 4, a reconnect interval and a push/pull interval together."""


class Machines(RuleBasedStateMachine):
    """Members a to d on ports 1 to 4; a moved or restarted member takes a port ten above its last."""

    @initialize(size=st.integers(2, 4), seed=st.integers(0, 2**16), loss=st.sampled_from([0.0, 0.1]))
    def begin(self, size: int, seed: int, loss: float) -> None:
        self.bench = Bench(seed=seed, loss=loss)
        self.epoch = 1
        self.ports: dict[str, int] = {}
        self.metadata: dict[tuple[str, int, bytes, int], bytes] = {}
        self.held: dict[tuple[int, str], tuple[int, Claim]] = {}
        self.cuts: set[tuple[int, int]] = set()
        self.bench.cut = lambda source, destination: (source % 10, destination % 10) in self.cuts
        self.bench.resolve = lambda port: self.ports.get(NAMES[port - DNS], port) if port >= DNS else port
        for name in NAMES[:size]:
            self.start(name, NAMES.index(name) + 1)
        self.bench.run(3)

    def start(self, name: str, port: int) -> None:
        self.ports[name] = port
        # Seeds are names: when all members moved at once, nothing else could bring them together again.
        seeds = [DNS + NAMES.index(known) for known in self.ports if known != name] or [DNS]
        self.bench.add(name, port, epoch=self.epoch, seeds=seeds, metadata=f"{name} {port}".encode())

    @property
    def running(self) -> list[str]:
        return [name for name, port in self.ports.items() if port in self.bench.machines]

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 20.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.bench.run(seconds)

    @rule(data=st.data(), is_new_port=st.booleans(), is_later=st.booleans())
    def restart(self, data: st.DataObject, is_new_port: bool, is_later: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.ports)))
        port = self.ports[name]
        self.bench.machines.pop(port, None)
        self.epoch += is_later
        self.start(name, port + 10 if is_new_port else port)

    @precondition(lambda self: len(self.running) > 1)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.bench.kill(self.ports[data.draw(st.sampled_from(self.running))])

    @precondition(lambda self: len(self.running) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        port = self.ports[data.draw(st.sampled_from(self.running))]
        self.bench.do(port, lambda swim, now: swim.leave(now))
        self.bench.run(3)
        self.bench.kill(port)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), value=st.binary(max_size=3))
    def set_metadata(self, data: st.DataObject, value: bytes) -> None:
        port = self.ports[data.draw(st.sampled_from(self.running))]
        self.bench.do(port, lambda swim, now: swim.set_metadata(now, value))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.running))
        old = self.ports[name]
        new = self.ports[name] = old + 10
        self.bench.machines[new] = self.bench.machines.pop(old)
        self.bench.do(new, lambda swim, now: swim.readvertise(now, address(new)))

    @rule(source=st.integers(1, 4), destination=st.integers(1, 4))
    def cut_one_way(self, source: int, destination: int) -> None:
        self.cuts.add((source, destination))

    @rule()
    def mend(self) -> None:
        self.cuts.clear()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def suspend(self, data: st.DataObject) -> None:
        port = self.ports[data.draw(st.sampled_from(self.running))]
        self.bench.freeze(port)
        self.bench.run(data.draw(st.sampled_from([0.5, 3.0, 15.0])))
        self.bench.thaw(port)

    @precondition(lambda self: self.running and self.bench.sent)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        _, _, transmit = data.draw(st.sampled_from(self.bench.sent[-200:]))
        port = self.ports[data.draw(st.sampled_from(self.running))]
        if isinstance(transmit, Datagram):
            self.bench.deliver(port, transmit.data)
        else:
            self.bench.request(port, transmit.data)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), junk=st.binary(max_size=80))
    def send_junk(self, data: st.DataObject, junk: bytes) -> None:
        port = self.ports[data.draw(st.sampled_from(self.running))]
        self.bench.deliver(port, junk)
        self.bench.request(port, junk)

    @invariant()
    def each_is_alive_to_itself(self) -> None:
        for swim in getattr(self, "bench", Bench()).machines.values():
            assert swim.local.state is MemberState.ALIVE
            assert swim.local in swim.members()
            assert [m.name for m in swim.members()] == sorted(m.name for m in swim.members())

    @invariant()
    def no_claim_in_a_view_ever_falls_and_one_version_has_one_content(self) -> None:
        for port, swim in getattr(self, "bench", Bench()).machines.items():
            for member in (*swim.members(), *swim.departed()):
                claim = Claim(member.epoch, member.instance, member.incarnation, member.state)
                key = (id(swim), member.name)
                holder, before = self.held.get(key, (port, claim))
                assert claim >= before, f"{swim.local.name}'s view of {member.name} fell"
                self.held[key] = (holder, claim)
                version = (member.name, *member.metadata_at)
                assert self.metadata.setdefault(version, member.metadata) == member.metadata

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.cuts.clear()
        self.bench.loss = 0.0
        for name, port in list(self.ports.items()):
            if port not in self.bench.machines or self.bench.machines[port].join_status is JoinStatus.NAME_IN_USE:
                self.bench.machines.pop(port, None)
                self.epoch += 1
                self.start(name, port)
        everybody = sorted(self.ports)

        def is_one_view() -> bool:
            return self.bench.all_see(*everybody) and all(
                swim.member(name).address.port == port
                for swim in self.bench.machines.values()
                for name, port in self.ports.items()
            )

        self.bench.run(CALM_S, until=is_one_view)


TestMachines = Machines.TestCase
TestMachines.settings = settings(
    max_examples=12,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
