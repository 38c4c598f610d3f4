"""More clients than lanes at one real node: everybody is served in turn, nobody starves, and the node keeps answering."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import httpx2
import pytest
import trio

from acceptance.check import LateError, at_best
from acceptance.nodes import Node, fleet
from benchmarks.burst import Tally, burst, probe
from saiserve.limits import ENTRY_QUEUE_MAX

pytestmark = pytest.mark.slow
MODELS = ("smollm2-135m", "gemma-3-270m")
HELD_S = 60.0
"""Who has a place waits longer than this; who is refused at once does not."""
FULL_S = 100.0
"""Longest time to fill all places; nobody leaves one before that."""
CONTROL_S = 1.0
"""Longest reply of a control endpoint; one poll in a hundred may meet a busy machine."""
PAUSE_SHARE_MAX = 0.5
"""Of the time in which a long prompt is read. A sixth at most by its pieces (`BATCH_MAX`), all of it if read in one go."""


def in_time(claim: bool, *seen: object) -> None:
    """What the clock says: a machine that stood still may have said it, and the whole is measured again."""
    if not claim:
        raise LateError(str(seen))


def assert_node_kept_answering(tally: Tally) -> None:
    for path, polls in tally.control_s.items():
        in_time(sorted(polls)[int(len(polls) * 0.99) - 1] < CONTROL_S, path, max(polls))


@dataclass
class Stream:
    """When one answer was asked for and when its pieces came, on trio's clock."""

    status: int = 0
    asked_at: float = 0.0
    times: list[float] = field(default_factory=list)

    def longest_pause_s(self, since: float, until: float) -> float:
        return max(b - a for a, b in pairwise([since, *(t for t in self.times if since < t < until), until]))


async def stream(node: Node, text: str, tokens: int, seen: Stream) -> None:
    body = {
        "model": node.environment["MODELS"],
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "stream": True,
    }
    body |= {"ignore_eos": True}
    seen.asked_at = trio.current_time()
    async with node.client(200) as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        seen.status = answer.status_code
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                seen.times.append(trio.current_time())


@pytest.mark.parametrize("model", MODELS)
async def test_thirty_clients_at_two_lanes_are_all_served_about_in_turn(model: str) -> None:
    await at_best(partial(served_in_turn, model))


async def served_in_turn(model: str) -> None:
    async with fleet() as nodes:
        node = await nodes.start_ready("a", model, environment={"LANES": "2"})
        tally = await burst(node.port, model, 30, 32)
    assert dict(tally.statuses) == {"200": 30}
    in_time(max(tally.first_byte_s) <= 3 * statistics.fmean(tally.first_byte_s), tally.first_byte_s)
    assert_node_kept_answering(tally)


@pytest.mark.parametrize("model", MODELS)
async def test_short_answers_do_not_wait_for_a_long_one(model: str) -> None:
    async with fleet() as nodes:
        node = await nodes.start_ready("a", model, environment={"LANES": "2"})
        long, shorts = Stream(), [Stream() for _ in range(20)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream, node, "Count for a long time.", 1_500, long)
            while not long.times:
                await trio.sleep(0.05)
            async with trio.open_nursery() as crowd:
                for number, seen in enumerate(shorts):
                    crowd.start_soon(stream, node, f"Say {number}.", 8, seen)
            assert len(long.times) < 1_400, "the short answers waited for the long one"
            nursery.cancel_scope.cancel()
    assert all(seen.status == 200 for seen in shorts)


@pytest.mark.parametrize("model", MODELS)
async def test_a_long_prompt_does_not_stop_running_streams(model: str) -> None:
    await at_best(partial(streams_beside_a_long_prompt, model))


async def streams_beside_a_long_prompt(model: str) -> None:
    async with fleet() as nodes:
        node = await nodes.start_ready("a", model, environment={"LANES": "3"})
        running, prefill, tally = [Stream(), Stream()], Stream(), Tally()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(probe, node.port, "/health", tally)
            async with trio.open_nursery() as work:
                for seen in running:
                    work.start_soon(stream, node, "Tell me a long story.", 1_500, seen)
                while not all(seen.times for seen in running):
                    await trio.sleep(0.05)
                await stream(node, "word " * 3_000, 1, prefill)
                work.cancel_scope.cancel()
            nursery.cancel_scope.cancel()
    assert prefill.status == 200
    read_s = prefill.times[0] - prefill.asked_at
    pauses_s = [seen.longest_pause_s(prefill.asked_at, prefill.times[0]) for seen in running]
    in_time(max(pauses_s) < read_s * PAUSE_SHARE_MAX, pauses_s, read_s)
    assert_node_kept_answering(tally)


async def test_what_no_queue_holds_is_refused_at_once_with_a_time_to_come_again() -> None:
    """The engine's queue and the entry's line are full of held requests; twenty more are told so."""
    async with fleet() as nodes:
        node = await nodes.start_ready("a", "sim=simulated:sim?lanes=2&queue_max=4&decode_rate=0.5", environment={})
        body = {"model": "sim", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 512, "stream": True}
        refused: list[tuple[str, float]] = []
        full = trio.Event()

        async def ask(client: httpx2.AsyncClient, *, waits: bool) -> None:
            begun = trio.current_time()
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                if not waits:
                    assert answer.status_code == 503
                    refused.append((answer.headers.get("retry-after", ""), trio.current_time() - begun))
                elif answer.status_code == 503:
                    full.set()
                await answer.aread()

        async with node.client(2 * HELD_S + FULL_S) as client, trio.open_nursery() as nursery:
            for _ in range(2 + 4 + ENTRY_QUEUE_MAX + 1):  # one more than there are places
                nursery.start_soon(partial(ask, client, waits=True))
                await trio.sleep(0.005)
            with trio.fail_after(FULL_S):
                await full.wait()
            async with trio.open_nursery() as surplus:
                for _ in range(20):
                    surplus.start_soon(partial(ask, client, waits=False))
            nursery.cancel_scope.cancel()
    assert len(refused) == 20
    assert all(again.isdigit() and seconds < HELD_S for again, seconds in refused), refused
