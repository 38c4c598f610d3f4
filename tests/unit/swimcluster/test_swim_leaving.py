"""Leaving: who is told, how it ends, and that the name may come back (rule P25)."""

from __future__ import annotations

from swimcluster.codec import encode_message
from swimcluster.events import (
    LeaveFinished,
    MemberDied,
    MemberLeft,
)
from swimcluster.member import MemberState
from swimcluster.messages import Ack
from swimcluster.transmits import JoinStatus, LeaveProgress
from tests.fakes.swim_bench import Bench, address, machine, tell


def test_leaving_is_told_to_all_and_reported_as_leaving():
    bench = Bench()
    bench.cluster(4)
    bench.do(4, lambda swim, now: swim.leave(now))
    bench.do(4, lambda swim, now: swim.leave(now))
    assert bench.machines[4].join_status is JoinStatus.LEAVING
    assert bench.machines[4].local.state is MemberState.LEFT
    bench.run(5, until=lambda: bench.machines[4].leave_progress.is_done)
    progress = bench.machines[4].leave_progress
    assert (progress.told, progress.members) == (3, 3)
    assert bench.heard(LeaveFinished) == [LeaveFinished(3, 3)]
    assert bench.machines[4].join_status is JoinStatus.LEFT
    assert bench.machines[4].next_deadline() is None
    bench.run(30)
    assert len(bench.heard(MemberLeft)) == 3
    assert not bench.heard(MemberDied)
    assert bench.machines[1].member("d").state is MemberState.LEFT


def test_leaving_alone_ends_at_once():
    bench = Bench()
    bench.add("a", 1)
    bench.do(1, lambda swim, now: swim.leave(now))
    assert bench.machines[1].leave_progress.is_done


def test_leaving_ends_when_nobody_answers_and_says_how_many_heard():
    bench = Bench()
    bench.cluster(3)
    bench.kill(1)
    bench.kill(2)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(15, until=lambda: bench.machines[3].leave_progress.is_done)
    assert bench.machines[3].leave_progress == LeaveProgress(0, 2, is_done=True)
    assert bench.heard(LeaveFinished) == [LeaveFinished(0, 2)]


def test_leaving_counts_those_that_confirmed_and_not_those_that_were_written_to():
    bench = Bench()
    bench.cluster(4)
    bench.kill(1)
    bench.cut = lambda source, destination: destination == 2
    bench.do(4, lambda swim, now: swim.leave(now))
    bench.run(15, until=lambda: bench.machines[4].leave_progress.is_done)
    assert bench.machines[4].leave_progress == LeaveProgress(1, 3, is_done=True)


def test_one_that_hears_and_cannot_say_so_is_not_counted():
    bench = Bench()
    bench.cluster(3)
    bench.cut = lambda source, destination: (source, destination) == (2, 3)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(15, until=lambda: bench.machines[3].leave_progress.is_done)
    assert bench.machines[3].leave_progress == LeaveProgress(1, 2, is_done=True)
    assert bench.machines[2].member("c").state is MemberState.LEFT


def test_a_lost_farewell_is_sent_again_to_whom_it_missed():
    bench = Bench()
    bench.cluster(8)
    rounds = [0] * 9
    lost = {2, 5, 7}

    def cut(source: int, destination: int) -> bool:
        rounds[destination] += source == 8
        return source == 8 and destination in lost and rounds[destination] <= 3

    bench.cut = cut
    bench.do(8, lambda swim, now: swim.leave(now))
    bench.run(3, until=lambda: bench.machines[8].leave_progress.is_done)
    assert bench.machines[8].leave_progress == LeaveProgress(7, 7, is_done=True)
    assert all(rounds[port] <= 3 for port in (1, 3, 4, 6))  # one datagram and at most one exchange each, and its reply


def test_another_process_in_a_members_place_does_not_confirm_for_it():
    bench = Bench()
    bench.cluster(3)
    bench.machines[1] = machine("x", 1, now=bench.now)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(15, until=lambda: bench.machines[3].leave_progress.is_done)
    assert bench.machines[3].leave_progress == LeaveProgress(1, 2, is_done=True)


def test_an_ack_by_somebody_else_confirms_for_nobody():
    bench = Bench()
    bench.cluster(3)
    bench.kill(1)
    bench.do(3, lambda swim, now: swim.leave(now))
    waiting = list(bench.machines[3].core.waiters)
    tell(bench, 3, *(Ack(sequence) for sequence in waiting), by=2)
    bench.run(15, until=lambda: bench.machines[3].leave_progress.is_done)
    assert bench.machines[3].leave_progress == LeaveProgress(1, 2, is_done=True)


def test_a_reply_that_comes_after_the_end_changes_nothing():
    bench = Bench()
    bench.cluster(3)
    for port in (1, 2):
        bench.freeze(port)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(15, until=lambda: bench.machines[3].leave_progress.is_done)
    bench.machines[3].core.leaver.exchange_over("a")
    assert bench.machines[3].leave_progress == LeaveProgress(0, 2, is_done=True)


def test_a_member_that_restarts_meanwhile_is_told_in_its_new_life():
    bench = Bench()
    bench.cluster(3)
    bench.kill(1)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(0.01)
    bench.add("a", 1, epoch=5, seeds=[2])
    bench.run(8, until=lambda: bench.machines[3].leave_progress.is_done)
    assert bench.machines[3].leave_progress == LeaveProgress(2, 2, is_done=True)


def test_a_leave_without_datagrams_of_its_own_is_told_by_exchange():
    bench = Bench()
    bench.cluster(3, leave_transmits_max=0)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(5, until=lambda: bench.machines[3].leave_progress.is_done)
    assert bench.machines[3].leave_progress == LeaveProgress(2, 2, is_done=True)


def test_a_leaver_still_answers_and_does_not_refute():
    bench = Bench()
    bench.cluster(3)
    bench.do(3, lambda swim, now: swim.leave(now))
    incarnation = bench.machines[3].local.incarnation
    bench.run(0.5)
    assert bench.machines[3].local.incarnation == incarnation
    assert bench.machines[1].member("c").state is MemberState.LEFT


def test_a_name_that_left_may_come_back():
    bench = Bench()
    bench.cluster(3)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(3)
    bench.kill(3)
    bench.add("c", 8, epoch=0, seeds=[1])
    bench.run(5, until=lambda: bench.all_see("a", "b", "c"))


def test_leaving_works_without_a_gossip_tick():
    bench = Bench()
    bench.cluster(3, gossip_interval_s=0)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(5, until=lambda: bench.machines[3].leave_progress.is_done)


def test_departed_members_are_remembered_and_then_forgotten():
    bench = Bench()
    bench.cluster(3, reconnect_for_s=100)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(3)
    bench.kill(3)
    bench.kill(2)
    bench.run(20)
    assert [(m.name, m.state.name) for m in bench.machines[1].departed()] == [("b", "DEAD"), ("c", "LEFT")]
    bench.run(240)
    assert bench.machines[1].departed() == ()


def test_a_leave_that_takes_long_lets_every_other_duty_rest():
    bench = Bench()
    bench.cluster(3, reconnect_interval_s=1, tombstone_s=1, seed_interval_s=1, push_pull_interval_s=1)
    instance = bench.machines[3].local.instance
    from swimcluster.messages import Alive

    words = Alive("c", "10.0.0.1", 77, 9, b"nobody!!", 0, b"", b"")
    bench.deliver(3, bench.machines[2].core.pack_datagram([encode_message(words)], 1))
    for port in (1, 2):
        bench.freeze(port)
    probes = bench.machines[3].statistics().probes
    bench.do(3, lambda swim, now: swim.set_vitals(now, b"so that the gossip tick does not rest"))
    bench.do(3, lambda swim, now: swim.leave(now))
    from swimcluster.messages import Suspect

    accusation = encode_message(Suspect("c", 1, instance, 0, "b"))
    bench.deliver(3, bench.machines[2].core.pack_datagram([accusation], 1))
    copy = machine("c", 3, now=bench.now, instance=instance)
    copy.core.counter = 10_000
    bench.deliver(3, copy.core.pack_datagram([], 1))
    bench.do(3, lambda swim, now: swim.readvertise(now, address(33)))
    bench.run(9)
    assert bench.machines[3].local.incarnation == 0
    assert bench.machines[3].local.address == address(3)
    assert bench.machines[3].statistics().probes == probes
    assert not bench.machines[3].leave_progress.is_done
    bench.run(5, until=lambda: bench.machines[3].leave_progress.is_done)


def test_a_leave_while_the_own_name_is_in_doubt_ends_the_doubt():
    from swimcluster.messages import Alive

    bench = Bench()
    bench.cluster(3)
    words = Alive("c", "10.0.0.1", 77, 9, b"nobody!!", 0, b"", b"")
    bench.deliver(3, bench.machines[2].core.pack_datagram([encode_message(words)], 1))
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(3)
    assert bench.machines[3].join_status is JoinStatus.LEFT
    assert bench.machines[3].local.epoch == 1


def test_a_join_that_is_answered_after_leaving_changes_nothing():
    bench = Bench()
    bench.cluster(2)
    bench.add("c", 3, seeds=[1])
    bench.run(0.0015)
    bench.do(3, lambda swim, now: swim.leave(now))
    bench.run(5)
    assert bench.machines[3].join_status is JoinStatus.LEFT
