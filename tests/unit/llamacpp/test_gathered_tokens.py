"""Tokens of running streams wait a moment for the next ones, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from saiserve.engines.llamacpp.outbox import GATHER_S
from saiserve.engines.messages import Finished, Progress, Tokens
from saiserve.engines.waits import NS
from tests.unit.llamacpp.desk import Desk, sampled

STEP_NS = 1_000_000


def stepped(desk: Desk) -> list[Any]:
    """What is written after one more step."""
    desk.now += STEP_NS
    computed = desk.worker.step(desk.now)
    return desk.worker.due_messages(desk.now) if computed else desk.worker.take_messages()


def begun(desk: Desk, tokens: int) -> str:
    """A running stream whose first token was written."""
    request_id = desk.ask(max_tokens=tokens, sampling=sampled(ignore_eos=True))
    while not any(isinstance(one, Tokens) for one in stepped(desk)):
        assert not desk.is_over(request_id)
    return request_id


def test_a_lone_stream_s_tokens_are_written_together_each_in_a_message_of_its_own(desk: Desk) -> None:
    request_id = begun(desk, 100)
    writes: list[list[Any]] = []
    since = 0
    while not (writes and isinstance(writes[-1][-1], Finished)):
        since += 1
        if written := stepped(desk):
            assert (since - 1) * STEP_NS < GATHER_S * NS
            writes.append(written)
            since = 0
    tokens = [one for written in writes for one in written if isinstance(one, Tokens)]
    assert len(tokens) == 99
    assert {(one.id, len(one.ids)) for one in tokens} == {(request_id, 1)}
    assert len(writes) <= 99 / 10


def test_first_tokens_and_ends_do_not_wait(desk: Desk) -> None:
    begun(desk, 500)
    for _ in range(3):
        short = desk.ask("and now", max_tokens=2, sampling=sampled(ignore_eos=True))
        said: list[Any] = []
        while not any(getattr(one, "id", "") == short for one in said):
            said = stepped(desk)
        assert isinstance(next(one for one in said if one.id == short), Tokens | Progress)
        while not any(isinstance(one, Finished) for one in said):
            said = stepped(desk)
        assert [type(one) for one in said if getattr(one, "id", "") == short][-2:] == [Tokens, Finished]


def test_nothing_waits_while_a_prompt_is_read_in_steps_of_its_own(open_strong: Callable[..., Desk]) -> None:
    desk = open_strong(True)
    first = begun(desk, 400)
    while stepped(desk):  # as long as it takes until one waits
        pass
    desk.worker.take_messages()
    second = desk.ask("a long prompt " * 60, max_tokens=3, sampling=sampled(ignore_eos=True))
    lone = 0
    while True:
        said = stepped(desk)
        assert said
        tokens = [one.id for one in said if isinstance(one, Tokens)]
        if second in tokens:
            break
        lone += tokens == [first]
    assert lone > 0
