"""A departed member's later life is asked before it is listed: it may be old news all the same (rules P4, P16)."""

from __future__ import annotations

from swimcluster.codec import encode_message
from swimcluster.events import MemberJoined, NameTaken, ReachabilityChanged
from swimcluster.member import MemberState, Reachability
from swimcluster.messages import Alive, Dead, Suspect
from swimcluster.swim import Swim
from tests.fakes.swim_bench import Bench, tell


def buried() -> Bench:
    """Three members, of which b has died in its first life."""
    bench = Bench()
    bench.cluster(3)
    bench.cut = lambda source, destination: 2 in {source, destination}
    bench.run(60, until=lambda: "b" not in bench.view(1) and "b" not in bench.view(3))
    assert [member.epoch for member in bench.machines[1].departed()] == [1]
    return bench


def reborn(bench: Bench, *others: object) -> Swim:
    """Start b's second life, of which c tells a, and of the others with it."""
    new = bench.add("b", 9, epoch=2)
    words = [new.core.identity.alive_bytes, *(encode_message(other) for other in others)]  # type: ignore[arg-type]
    bench.deliver(1, bench.machines[3].core.pack_datagram(words, len(words), fill=False))
    return new


def test_an_old_request_of_a_joiner_that_was_never_let_in_brings_no_departed_member_back():
    bench = Bench()
    bench.cluster(3)
    asked: list[bytes] = []
    take = bench.request
    bench.request = lambda port, data, source=0: (asked.append(data) if source == 9 else None, take(port, data))[1]
    bench.add("b", 9, seeds=[1], epoch=2)
    bench.run(5, until=lambda: bool(bench.heard(NameTaken)))
    bench.kill(9)
    bench.kill(2)
    bench.run(60, until=lambda: "b" not in bench.view(1) and "b" not in bench.view(3))
    before = len(bench.heard(MemberJoined))
    # Its life is later than any held and its frame new to c: neither order nor window refuses it.
    assert take(3, asked[0]) is not None
    assert "b" in bench.machines[3].core.verifier
    bench.run(15)
    assert len(bench.heard(MemberJoined)) == before
    assert [member.epoch for member in bench.machines[3].departed()] == [1]
    assert bench.machines[3].statistics().members_unverified == 0


def test_a_departed_members_later_life_is_listed_once_it_answers():
    bench = buried()
    before = len(bench.heard(MemberJoined, at="a"))
    reborn(bench)
    assert "b" not in bench.view(1)
    bench.run(0.1)
    assert [event.member.epoch for event in bench.heard(MemberJoined, at="a")[before:]] == [2]
    assert not bench.machines[1].departed()


def test_a_later_life_said_to_be_dead_while_it_is_asked_is_listed_when_it_has_refuted_that():
    bench = buried()
    before = len(bench.heard(MemberJoined, at="a"))
    new = reborn(bench)
    tell(bench, 1, Dead("b", 2, new.local.instance, 0, "c"), by=3)
    bench.run(0.1)
    joined = [event.member for event in bench.heard(MemberJoined, at="a")[before:]]
    assert [(member.epoch, member.incarnation) for member in joined] == [(2, 1)]
    assert bench.machines[1].statistics().members_unverified == 0


def test_a_later_life_that_answers_replaces_the_earlier_one_whatever_is_said_of_that_meanwhile():
    bench = buried()
    before = len(bench.heard(MemberJoined, at="a"))
    reborn(bench, Alive("b", "10.0.0.1", 2, 1, bench.machines[2].local.instance, 7, b"", b""))
    assert bench.machines[1].member("b").state is MemberState.DEAD
    bench.run(0.1)
    assert bench.machines[1].member("b").epoch == 2
    assert [event.member.epoch for event in bench.heard(MemberJoined, at="a")[before:]] == [2]


def test_newer_words_of_a_departed_life_list_nobody_who_does_not_answer():
    bench = buried()
    said = Alive("b", "10.0.0.1", 2, 1, bench.machines[2].local.instance, 7, b"", b"")
    bench.deliver(1, bench.machines[3].core.pack_datagram([encode_message(said)], 1, fill=False))
    assert "b" in bench.machines[1].core.verifier
    bench.run(15)
    assert bench.machines[1].member("b").state is MemberState.DEAD
    assert bench.machines[1].statistics().members_unverified == 0


def test_a_newer_suspicion_of_a_departed_member_lists_nobody():
    """A suspicion that was spread while this node was cut off is as new to it when it is replayed or read late."""
    bench = buried()
    before, dropped = len(bench.events), bench.machines[1].statistics().dropped_unknown
    tell(bench, 1, Suspect("b", 1, bench.machines[2].local.instance, 7, "c"), by=3)
    assert bench.machines[1].member("b").state is MemberState.DEAD
    assert bench.machines[1].statistics().dropped_unknown == dropped + 1
    assert [type(event) for _, name, event in bench.events[before:] if name == "a"] == []


def test_a_suspected_member_that_is_departed_here_is_back_by_its_own_answer():
    bench = buried()
    bench.cut = lambda source, destination: False
    bench.do(2, lambda swim, now: swim.set_metadata(now, b"new"))
    b = bench.machines[2]
    both = [b.core.identity.alive_bytes, encode_message(Suspect("b", 1, b.local.instance, b.local.incarnation, "c"))]
    bench.deliver(1, bench.machines[3].core.pack_datagram(both, 2, fill=False))
    assert "b" not in bench.view(1)
    bench.run(0.1)
    assert bench.view(1)["b"] is MemberState.ALIVE


def test_the_packets_of_a_departed_member_are_no_proof_that_it_lives():
    """A frame that this node missed when it was new is taken once; its incarnation may be above the one that died."""
    bench = buried()
    bench.do(2, lambda swim, now: swim.set_metadata(now, b"new"))
    frame = bench.machines[2].core.pack_datagram([], 1, fill=False)
    bench.kill(2)
    before = len(bench.events)
    bench.deliver(1, frame)
    bench.run(15)
    members = [getattr(event, "member", None) for _, name, event in bench.events[before:] if name == "a"]
    assert "b" not in [member.name for member in members if member]


def test_a_departed_member_that_answers_is_back_in_the_life_it_had():
    bench = buried()
    bench.do(2, lambda swim, now: swim.set_metadata(now, b"new"))
    bench.cut = lambda source, destination: False
    said = bench.machines[2].core.identity.alive_bytes
    bench.deliver(1, bench.machines[3].core.pack_datagram([said], 1, fill=False))
    assert "b" not in bench.view(1)
    bench.run(0.1)
    assert "b" in bench.view(1)
    assert bench.machines[1].member("b").epoch == 1


def test_a_late_answer_of_the_earlier_life_says_nothing_once_a_later_one_is_listed():
    bench = buried()
    earlier = bench.machines[1].core.table.get("b")
    assert earlier is not None
    reborn(bench)
    bench.run(0.1)
    before = len(bench.heard(ReachabilityChanged, at="a"))
    bench.machines[1].core.prober.succeeded(bench.now, earlier, Reachability.RELAYED)
    bench.flush(1)
    assert len(bench.heard(ReachabilityChanged, at="a")) == before
