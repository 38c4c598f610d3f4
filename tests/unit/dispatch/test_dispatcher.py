"""Answers over a fleet in one process, on a virtual clock."""

from __future__ import annotations

import pytest
import trio
from fake_fleet import DIGEST, FakeFleet, failure_of, finish_of, plain, request_of, text_of, usage_of

from saiserve import limits
from saiserve.chat.events import ChoiceFinished, Started, StopKind, TextDelta, Usage
from saiserve.engines.messages import Sampling
from saiserve.engines.simulated import Fault, FaultKind, SimulatedSettings
from saiserve.errors import ApiError, ErrorKind
from saiserve.routing.decision import Refusal

pytestmark = pytest.mark.autojump


async def undisturbed(**more: object) -> str:
    return text_of(await FakeFleet(1).ask(request_of(**more)))  # type: ignore[arg-type]


async def test_an_answer_starts_once_streams_text_and_ends_with_usage() -> None:
    fleet = FakeFleet(1)
    events = await fleet.ask(request_of())
    assert isinstance(events[0], Started)
    assert sum(isinstance(event, Started) for event in events) == 1
    assert finish_of(events).kind is StopKind.END
    assert usage_of(events).completion_tokens == 64
    assert usage_of(events).prompt_tokens == events[0].prompt_tokens > 0
    assert "\ufffd" not in text_of(events)
    fleet.assert_idle()


@pytest.mark.parametrize("kind", [FaultKind.CUT, FaultKind.STALL, FaultKind.CRASH, FaultKind.INTERNAL])
async def test_a_break_at_any_token_of_64_is_carried_over_unseen(kind: FaultKind) -> None:
    expected = await undisturbed()
    for index in range(65):
        fleet = FakeFleet(3)
        fleet.engines["a"].faults.append(Fault(kind, at_token=index))
        events = await fleet.ask(request_of())
        assert text_of(events) == expected, index
        assert usage_of(events).completion_tokens == 64
        assert sum(isinstance(event, Started) for event in events) == 1
        assert fleet.starts["a"] == 1
        assert fleet.starts["b"] == (1 if index < 64 else 0)
        fleet.assert_idle()


async def test_two_breaks_are_carried_over_and_the_third_is_the_end() -> None:
    expected = await undisturbed()
    fleet = FakeFleet(3)
    fleet.engines["a"].faults.append(Fault(FaultKind.CUT, at_token=5))
    fleet.engines["b"].faults.append(Fault(FaultKind.CUT, at_token=20))
    assert text_of(await fleet.ask(request_of())) == expected
    fleet.engines["c"].faults.append(Fault(FaultKind.CUT, at_token=40))
    events = await fleet.ask(request_of())
    assert failure_of(events).error.kind is ErrorKind.MODEL_UNAVAILABLE
    assert not any(isinstance(event, ChoiceFinished | Usage) for event in events)
    assert expected.startswith(text_of(events))
    assert sum(fleet.starts.values()) == 6
    fleet.assert_idle()


async def test_a_break_before_acceptance_everywhere_is_an_error_on_entry() -> None:
    fleet = FakeFleet(3)
    for engine in fleet.engines.values():
        engine.kill()
    with pytest.raises(ApiError) as caught:
        await fleet.ask(request_of())
    assert caught.value.kind is ErrorKind.MODEL_UNAVAILABLE
    assert caught.value.retry_after_s is not None
    assert sum(fleet.starts.values()) == limits.ATTEMPTS_MAX


async def test_another_build_of_the_model_may_start_an_answer_but_not_continue_one() -> None:
    fleet = FakeFleet(2)
    fleet.digests["b"] = b"another0"
    fleet.engines["a"].faults.append(Fault(FaultKind.CUT, at_token=0, times=1))
    assert usage_of(await fleet.ask(request_of())).completion_tokens == 64
    fleet.engines["a"].faults[:] = [Fault(FaultKind.CUT, at_token=9)]
    events = await fleet.ask(request_of())
    assert failure_of(events)
    assert fleet.starts["b"] == 1
    fleet.digests["b"] = DIGEST
    assert usage_of(await fleet.ask(request_of())).completion_tokens == 64


async def test_an_answer_with_adapters_by_number_is_not_continued_by_another_node() -> None:
    fleet = FakeFleet(2)
    fleet.engines["a"].faults.append(Fault(FaultKind.CUT, at_token=9))
    assert failure_of(await fleet.ask(request_of(sampling=Sampling(seed=7, lora=((0, 0.5),)))))
    assert fleet.starts["b"] == 0


async def test_the_only_node_may_go_on_itself_after_a_rest() -> None:
    fleet = FakeFleet(1)
    fleet.engines["a"].faults.append(Fault(FaultKind.CUT, at_token=9, times=1))
    assert text_of(await fleet.ask(request_of())) == await undisturbed()
    assert fleet.starts["a"] == 2


async def test_a_stream_that_moves_outranks_a_verdict_of_death() -> None:
    fleet = FakeFleet(2, plain(decode_rate=1.0))
    fleet.dead.add("a")
    events = await fleet.ask(request_of())
    assert usage_of(events).completion_tokens == 64
    assert fleet.starts == {"a": 1}


async def test_a_silent_stream_of_a_dead_member_is_given_up_after_two_seconds() -> None:
    for is_dead, silence in ((False, limits.PROGRESS_S), (True, limits.PROGRESS_WHEN_DEAD_S)):
        fleet = FakeFleet(2)
        fleet.prefer = ["b", "a"]  # members die, this node does not
        fleet.engines["b"].faults.append(Fault(FaultKind.STALL, at_token=10))
        began = trio.current_time()
        async with fleet.dispatcher.answer(request_of()) as answer:
            async with trio.open_nursery() as nursery:

                async def verdict(fleet: FakeFleet = fleet, is_dead: bool = is_dead) -> None:
                    await trio.sleep(0.5)
                    if is_dead:
                        fleet.dead.add("b")
                    fleet.change()

                nursery.start_soon(verdict)
                events = [event async for event in answer.events]
        took = trio.current_time() - began
        assert usage_of(events).completion_tokens == 64
        assert silence <= took <= silence + 1.0


async def test_a_busy_place_is_passed_over_and_its_load_is_told() -> None:
    fleet = FakeFleet(3)
    fleet.engines["a"].faults.append(Fault(FaultKind.BUSY))
    events = await fleet.ask(request_of())
    assert usage_of(events).completion_tokens == 64
    assert [name for name, _ in fleet.loads][:2] == ["a", "b"]


async def test_when_all_are_busy_requests_wait_in_line_and_all_are_served() -> None:
    fleet = FakeFleet(2, plain(lanes=1, queue_max=0))
    finished: list[str] = []

    async def one(number: int) -> None:
        await trio.sleep(number * 0.001)
        events = await fleet.ask(request_of(f"Question {number}", id=f"r{number}"))
        assert usage_of(events).completion_tokens == 64
        finished.append(f"r{number}")

    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(one, number)
    assert len(finished) == 12
    assert [int(name[1:]) // 2 for name in finished] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    fleet.assert_idle()


async def test_waiting_ends_with_503_and_retry_after() -> None:
    fleet = FakeFleet(2)
    for engine in fleet.engines.values():
        engine.faults.append(Fault(FaultKind.BUSY))
    began = trio.current_time()
    with pytest.raises(ApiError) as caught:
        await fleet.ask(request_of())
    assert caught.value.kind is ErrorKind.BUSY
    assert caught.value.retry_after_s is not None
    assert limits.QUEUE_S <= trio.current_time() - began <= limits.QUEUE_S + 3
    fleet.assert_idle()


async def test_what_the_client_did_wrong_is_told_at_once_after_one_attempt() -> None:
    fleet = FakeFleet(3, plain(context_tokens=8))
    with pytest.raises(ApiError) as caught:
        await fleet.ask(request_of("a prompt that is far too long for eight tokens"))
    assert caught.value.kind is ErrorKind.CONTEXT_TOO_LONG
    assert caught.value.context_tokens == 8
    assert caught.value.prompt_tokens > 8
    assert sum(fleet.starts.values()) == 1


async def test_a_refusal_of_routing_is_the_clients_error() -> None:
    fleet = FakeFleet(1)
    fleet.refusal = Refusal(ErrorKind.MODEL_NOT_FOUND, "no such model")
    with pytest.raises(ApiError) as caught:
        await fleet.ask(request_of())
    assert caught.value.row.status == 404


async def test_max_tokens_is_the_length_of_the_whole_answer_however_often_it_moved() -> None:
    fleet = FakeFleet(3)
    fleet.engines["a"].faults.append(Fault(FaultKind.CUT, at_token=30))
    events = await fleet.ask(request_of(max_tokens=40))
    assert usage_of(events).completion_tokens == 40
    assert finish_of(events).kind is StopKind.LENGTH
    assert fleet.engines["b"].started[0].max_tokens == 40
    assert len(fleet.engines["b"].started[0].resume_tokens) == 30


async def test_stop_strings_over_tokens_and_over_nodes_are_found_here() -> None:
    text = await undisturbed()
    for size in (3, 7, 11):
        for start in range(0, 90, 13):
            stop = text[start : start + size]
            for cut_at in (0, 5, 12, 63):
                fleet = FakeFleet(2)
                fleet.engines["a"].faults.append(Fault(FaultKind.CUT, at_token=cut_at))
                events = await fleet.ask(request_of(stop=(stop,)))
                assert text_of(events) == text[: text.index(stop)]
                assert finish_of(events) == ChoiceFinished(0, StopKind.STOP_STRING, stop)
                fleet.assert_idle()


async def test_choices_differ_run_at_once_and_are_carried_over_each_by_itself() -> None:
    whole = await FakeFleet(2).ask(request_of(choices=3))
    texts = [text_of(whole, choice) for choice in range(3)]
    assert len(set(texts)) == 3
    assert usage_of(whole).completion_tokens == 3 * 64
    order = [event.choice for event in whole if isinstance(event, TextDelta)]
    assert order != sorted(order)
    fleet = FakeFleet(2)
    fleet.engines["a"].faults.append(Fault(FaultKind.CUT, at_token=20, times=1))
    events = await fleet.ask(request_of(choices=3))
    assert [text_of(events, choice) for choice in range(3)] == texts
    assert fleet.starts["b"] == 1


async def test_logprobs_add_up_to_the_text() -> None:
    events = await FakeFleet(1).ask(request_of(sampling=Sampling(seed=7, logprobs=0)))
    pieces = [entry.piece for event in events if isinstance(event, TextDelta) for entry in event.logprobs or ()]
    assert b"".join(pieces).decode() == text_of(events)
    assert len(pieces) == 64


@pytest.mark.parametrize("after", [0, 1, 40])
@pytest.mark.parametrize("entered_at", ["a", "b"])
async def test_a_client_that_leaves_a_stream_frees_the_lane_at_once(after: int, entered_at: str) -> None:
    fleet = FakeFleet(2)
    fleet.prefer = [entered_at]
    async with fleet.dispatcher.answer(request_of()) as answer:
        count = 0
        async for _ in answer.events:
            if count == after:
                break
            count += 1
    fleet.assert_idle()
    assert answer.usage.completion_tokens <= 64


async def test_a_client_that_leaves_during_prefill_or_in_a_queue_frees_its_place() -> None:
    fleet = FakeFleet(1, plain(lanes=1, prefill_rate=10.0))
    async with trio.open_nursery() as nursery:

        async def leaves(seconds: float, text: str) -> None:
            with trio.move_on_after(seconds):
                await fleet.ask(request_of(text))

        nursery.start_soon(leaves, 1.0, "a prompt of many many tokens, prefilled slowly")
        await trio.sleep(0.1)
        nursery.start_soon(leaves, 0.5, "queued behind it")
    fleet.assert_idle()
    assert [str(g.prompt) for g in fleet.engines["a"].started if "queued" in str(g.prompt)] == []


async def test_a_client_that_leaves_while_every_place_is_busy_leaves_the_line() -> None:
    fleet = FakeFleet(1)
    fleet.engines["a"].faults.append(Fault(FaultKind.BUSY))
    with trio.move_on_after(5):
        await fleet.ask(request_of())
    fleet.assert_idle()


async def test_a_slow_client_is_no_stall_of_the_engine() -> None:
    fleet = FakeFleet(2, SimulatedSettings(answer_tokens=400))
    async with fleet.dispatcher.answer(request_of(max_tokens=400)) as answer:
        events = []
        async for event in answer.events:
            events.append(event)
            if len(events) in (1, 100, 200):
                await trio.sleep(60)
    assert usage_of(events).completion_tokens == 400
    assert fleet.starts == {"a": 1}
    fleet.assert_idle()


async def test_an_exception_of_the_reader_comes_out_as_it_is() -> None:
    fleet = FakeFleet(1)
    with pytest.raises(ZeroDivisionError):
        async with fleet.dispatcher.answer(request_of()):
            raise ZeroDivisionError
    fleet.assert_idle()
