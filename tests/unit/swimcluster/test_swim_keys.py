"""Keys, and what is refused and how that is told (P28, P29, P32)."""

from __future__ import annotations

import pytest

from swimcluster.address import Address
from swimcluster.codec import encode_message
from swimcluster.config_checks import KEYS_MAX
from swimcluster.errors import ConfigError
from swimcluster.events import JoinAttemptFailed, PeerRefused
from swimcluster.keyring import Keyring
from swimcluster.mac import VERSION, FrameKind, Hello, binding_of, open_frame, seal, split_hello
from swimcluster.messages import Introduce
from swimcluster.refusals import TOLD_MAX
from tests.fakes.swim_bench import KEY, Bench, S, address, machine

OTHER_KEY = b"another sixteen bytes"
COUNTERS = {"dropped_key", "dropped_cluster", "dropped_version", "dropped_mac"}


def test_a_ring_that_remembers_verifies_with_keys_beyond_the_number_it_may_hold_and_signs_as_before():
    keys = [bytes([number]) * 16 for number in range(1, KEYS_MAX + 3)]
    ring = Keyring("default", tuple(keys[:KEYS_MAX]))
    signing_id = ring.signing_id
    with pytest.raises(ConfigError, match="remove one first"):
        ring.install(keys[KEYS_MAX])
    for key in keys[KEYS_MAX:]:
        ring.remember(key)
        other = Keyring("default", (key,))
        frame = seal(other, FrameKind.DATAGRAM, b"instance", 1, b"body")
        assert open_frame(ring, FrameKind.DATAGRAM, frame).body == b"body"
    assert ring.signing_id == signing_id
    assert len(ring.ids()) == KEYS_MAX + 2
    with pytest.raises(ConfigError, match="16"):
        ring.remember(b"short")
    assert len(ring.ids()) == KEYS_MAX + 2


# Keys and refusals ----------------------------------------------------------------------------------------------


def test_keys_rotate_without_a_moment_of_silence():
    bench = Bench()
    bench.cluster(3)
    swims = list(bench.machines.values())
    old = swims[0].key_ids()[0]
    for port in (1, 2):
        new = bench.do(port, lambda swim, now: swim.install_key(now, OTHER_KEY))
    bench.run(2)
    assert swims[0].key_coverage(new) == (("a", "b"), ("c",))
    with pytest.raises(ConfigError, match="missing at c"):
        swims[0].use_key(bench.now, new)
    bench.do(3, lambda swim, now: swim.install_key(now, OTHER_KEY))
    bench.run(2)
    for port in (1, 2, 3):
        bench.do(port, lambda swim, now: swim.use_key(now, new))
    bench.run(2)
    for port in (1, 2, 3):
        bench.do(port, lambda swim, now: swim.remove_key(now, old))
    bench.run(20)
    assert bench.all_see("a", "b", "c")
    assert all(swim.key_ids() == (new,) for swim in swims)
    assert all(swim.statistics().dropped_key == 0 for swim in swims)


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (lambda s, now: s.install_key(now, b"short"), "16"),
        (lambda s, now: s.use_key(now, b"none"), "install it first"),
        (lambda s, now: s.remove_key(now, b"none"), "install it first"),
        (lambda s, now: s.use_key(now, s.key_ids()[0].hex()), "must be bytes"),
        (lambda s, now: s.remove_key(now, None), "must be bytes"),
        (lambda s, now: s.remove_key(now, s.key_ids()[0]), "use another"),
        (lambda s, now: [s.install_key(now, bytes([i]) * 16) for i in range(4)], "remove one first"),
    ],
)
def test_a_key_operation_that_makes_no_sense_is_refused(call, fault):
    bench = Bench()
    bench.cluster(2)
    with pytest.raises(ConfigError, match=fault):
        call(bench.machines[1], bench.now)


def test_installing_a_key_twice_is_one_key_and_an_insecure_cluster_takes_none():
    bench = Bench()
    bench.add("a", 1)
    swim = bench.machines[1]
    assert swim.install_key(bench.now, KEY) == swim.key_ids()[0]
    assert len(swim.key_ids()) == 1
    assert KEY.hex() not in repr(swim.keyring)
    assert KEY.decode() not in repr(swim.keyring)
    open_one = machine("b", 2, keys=[], insecure=True)
    with pytest.raises(ConfigError, match="insecure"):
        open_one.install_key(1, KEY)
    assert open_one.key_coverage(open_one.key_ids()[0]) == ((), ("b",))


def test_an_insecure_cluster_works_and_refuses_a_secret_one():
    bench = Bench()
    bench.cluster(2, keys=[], insecure=True)
    bench.add("c", 3, seeds=[1])
    bench.run(5)
    assert bench.all_see("a", "b") or bench.views()[0] == ["a", "b"]
    assert bench.machines[1].statistics().dropped_key > 0


@pytest.mark.parametrize(
    ("settings", "fault", "counter"),
    [
        ({"keys": [OTHER_KEY]}, "key ids", "dropped_key"),
        ({"cluster": "blue"}, "'blue'", "dropped_cluster"),
    ],
)
def test_a_mismatch_is_named_on_both_sides_and_changes_nothing(settings, fault, counter):
    bench = Bench()
    bench.cluster(2)
    bench.add("x", 9, seeds=[1], **settings)
    bench.run(20)
    (here,) = bench.heard(PeerRefused, at="a")
    (there,) = bench.heard(PeerRefused, at="x")
    assert fault in here.reason
    assert "cluster 'default'" in there.reason or "key ids" in there.reason
    assert there.address == address(1)
    tried = bench.heard(JoinAttemptFailed, at="x")
    assert {(event.seeds, event.refused) for event in tried} == {((address(1),), (address(1),))}
    for port in (1, 9):
        assert getattr(bench.machines[port].statistics(), counter) >= 1
        assert sum(getattr(bench.machines[port].statistics(), name) for name in COUNTERS - {counter}) == 0
    assert bench.views()[0] == ["a", "b"]


def test_another_protocol_version_is_refused_with_a_reason():
    bench = Bench()
    a, *_ = bench.cluster(2)
    request = _state_request(bench)
    refusal = bench.request(1, request[:2] + b"\x07" + request[3:])
    assert refusal is not None
    assert len(refusal) <= len(request)
    assert "version 7" in bench.heard(PeerRefused, at="a")[0].reason
    hello, _ = split_hello(b"sr", refusal)
    assert hello == Hello(VERSION, "default", a.key_ids())
    data = bench.machines[2].core.pack_datagram([], 1)
    bench.deliver(1, data[:2] + b"\x07" + data[3:])
    assert a.statistics().dropped_version == 2
    for version in (VERSION, 9):
        number = _own_exchange(bench)
        a.exchange_replied(bench.now + 61 * S, number, b"sr" + bytes((version,)) + refusal[3:])
    reasons = [event.reason for event in a.events() if isinstance(event, PeerRefused)]
    assert any("version 9" in reason for reason in reasons)
    assert a.statistics().dropped_version == 3


def _own_exchange(bench: Bench) -> int:
    core = bench.machines[1].core
    entry = core.table.live["b"]
    from swimcluster.push_pull import StateExchange

    core.synchronizer.exchange(entry.address, StateExchange(core))
    return core.take_transmits()[-1].id


def _state_request(bench: Bench, by: int = 2) -> bytes:
    from swimcluster.push_pull import StateExchange

    core = bench.machines[by].core
    core.synchronizer.exchange(address(1), StateExchange(core))
    return core.take_transmits()[-1].data


def test_no_stranger_gets_more_than_it_sent():
    bench = Bench()
    a, *_ = bench.cluster(2, cluster="a cluster with a name as long as names of clusters may ever be")
    request = _state_request(bench)
    for end in range(len(request)):
        reply = a.exchange_received(bench.now, None, request[:end])
        assert reply is None or len(reply) <= end
    a.core.config = a.core.config.__class__.lan(name="a", advertise="h:1", keys=[KEY], cluster="default")
    tiny = b"sx\x02\x00\x0c" + b"\x92\xa1x\xc4\x08" + b"k" * 8 + b"sw\x02\x02" + b"c" * 40
    assert a.exchange_received(bench.now, None, tiny[:17]) is None


def test_broken_requests_are_counted_and_closed():
    bench = Bench()
    a, *_ = bench.cluster(2)
    core = bench.machines[2].core
    request = _state_request(bench)
    hello = request[: request.index(b"sw", 5)]

    def sealed(body: bytes, counter: int) -> bytes:
        return hello + seal(core.keyring, FrameKind.REQUEST, core.identity.instance, counter, body, binding=hello)

    assert bench.request(1, b"") is None
    assert bench.request(1, sealed(b"\xc1", 10**6)) is None
    assert bench.request(1, sealed(b"\xc1", 10**6)) is None
    from swimcluster.codec import encode_body

    for number, messages in enumerate(([], [encode_message(Introduce())])):
        assert bench.request(1, sealed(encode_body(core.identity.envelope, messages), 10**6 + 1 + number)) is None
    assert bench.request(1, b"x" * (a.core.config.exchange_bytes_max + 1)) is None
    statistics = a.statistics()
    assert (statistics.dropped_malformed, statistics.dropped_replay) == (5, 1)


def test_broken_replies_fail_the_exchange():
    bench = Bench()
    a, *_ = bench.cluster(2)
    core = bench.machines[2].core
    for reply in (b"", b"sr", b"junk"):
        a.exchange_replied(bench.now, _own_exchange(bench), reply)
    number = _own_exchange(bench)
    binding = a.core.exchanges[number].binding
    bad = seal(core.keyring, FrameKind.REPLY, core.identity.instance, 1, b"\xc1", binding=binding)
    a.exchange_replied(bench.now, number, bad)
    assert a.statistics().exchanges_failed == 4
    assert open_frame(core.keyring, FrameKind.REPLY, bad, binding).counter == 1
    assert binding == binding_of(a.local.instance, a.core.counter)


def test_refusals_told_are_bounded_whoever_dials_and_however_often():
    bench = Bench()
    a, *_ = bench.cluster(2)
    refusals, hello = a.core.inbox.refusals, Hello(1, "other", ())

    def told() -> int:
        return sum(isinstance(event, PeerRefused) for event in a.events())

    for port in range(1000, 1100):
        refusals.of_caller(bench.now, Address("10.9.9.9", port), hello)
        refusals.of_caller(bench.now, None, hello)
    assert told() == 2  # one for the host, one for whoever has no address
    for port in range(1000, 1005 + TOLD_MAX):
        refusals.by_seed(bench.now, address(port), hello)
    assert told() == TOLD_MAX - 2
    later = bench.now + 61 * S
    refusals.of_caller(later, Address("10.9.9.9", 1), hello)
    refusals.by_seed(later, address(9), hello)
    assert told() == 2
    assert len(refusals) == TOLD_MAX


def test_a_flood_from_one_source_is_dropped_before_any_check():
    bench = Bench()
    a, *_ = bench.cluster(2, source_rate_max=100)
    for _ in range(300):
        a.receive_datagram(bench.now, address(9), b"junk")
    request = _state_request(bench)
    assert a.exchange_received(bench.now, address(9), request) is None
    statistics = a.statistics()
    assert statistics.dropped_rate >= 190
    a.receive_datagram(bench.now, None, b"junk")
    assert a.statistics().dropped_malformed == statistics.dropped_malformed + 1
