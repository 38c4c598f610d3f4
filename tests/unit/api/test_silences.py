"""No stream is without bytes for longer than the keep-alive interval, whatever its events show; none is pinged sooner."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import trio

from saiserve.api.chat_calls import CallForm
from saiserve.api.chat_reply import ChatHead, ChatStreamEncoder
from saiserve.api.errors import ErrorStyle
from saiserve.api.http import Call
from saiserve.api.messages_reply import MessageStreamEncoder
from saiserve.api.outlet import Encoder
from saiserve.api.prepare import Prepared
from saiserve.api.responses_reply import ResponseEncoder
from saiserve.api.sse import Streamed
from saiserve.chat.events import (
    AnswerFailed,
    ChoiceFinished,
    ReasoningDelta,
    Started,
    StopKind,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from saiserve.chat.request import Dialect, GenerationRequest
from saiserve.engines.messages import Sampling
from saiserve.errors import ApiError, ErrorKind
from tests.fakes.service import Pause, ScriptedService, Step

pytestmark = pytest.mark.autojump

KEEPALIVE_S = 15.0
CALL_IN = Call("POST", "/v1/chat/completions", {}, {}, {}, b"", "r", "", ErrorStyle.OPENAI)
ECHO = {"model": "smol", "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
REQUEST = GenerationRequest("r", Dialect.CHAT, "smol", Sampling(1))


def each_second(count: int, step: Step) -> list[Step]:
    return [one for _ in range(count) for one in (Pause(1.0), step)]


def ended(kind: StopKind) -> list[Step]:
    return [ChoiceFinished(0, kind), Usage(1, 0, 120)]


CALL: list[Step] = [
    Started(1, 0),
    ToolCallStarted(0, 0, "c", "patch"),
    *each_second(120, ToolCallDelta(0, 0, "x")),
    *ended(StopKind.TOOL_CALLS),
]
THOUGHT: list[Step] = [
    Started(1, 0),
    *each_second(120, ReasoningDelta(0, "x")),
    TextDelta(0, "a"),
    *ended(StopKind.END),
]
LATE: list[Step] = [Pause(14.0), Started(1, 0), Pause(14.9), TextDelta(0, "a"), *ended(StopKind.END)]


def chat(**options: Any) -> ChatStreamEncoder:
    return ChatStreamEncoder(ChatHead("c", 1, "smol"), choices=1, usage=True, **options)


def responses(**options: Any) -> ResponseEncoder:
    return ResponseEncoder(response_id="resp_1", created=1, echo=ECHO, **options)


def messages(*, thinking: bool) -> MessageStreamEncoder:
    return MessageStreamEncoder(message_id="m", model="smol", thinking=thinking)


async def bodies(encoder: Encoder, steps: list[Step], *, slow_s: float = 0.0) -> list[tuple[float, bytes]]:
    """When a client that takes `slow_s` for each piece has got it, and what it was."""
    got: list[tuple[float, bytes]] = []
    began = trio.current_time()

    async def send(message: dict[str, Any]) -> None:
        if message.get("body"):
            await trio.sleep(slow_s)
            got.append((trio.current_time() - began, message["body"]))

    service = ScriptedService(lambda request: steps)
    streamed = Streamed(service, Prepared(REQUEST, lambda event: [event]), encoder, KEEPALIVE_S)
    await streamed.send(CALL_IN, send)
    return got


def silences(got: list[tuple[float, bytes]]) -> list[float]:
    times = [0.0, *(at for at, _ in got)]
    return [after - before for before, after in pairwise(times)]


def pings(got: list[tuple[float, bytes]]) -> int:
    return sum(data.count(b":\n\n") + data.count(b"event: ping\n") for _, data in got)


@pytest.mark.parametrize(
    ("encoder", "steps", "expected"),
    [
        (responses(custom_tools=frozenset({"patch"})), CALL, 8),
        (chat(form=CallForm(custom=frozenset({"patch"}))), CALL, 8),
        (messages(thinking=False), THOUGHT, 7),
        (chat(), LATE, 1),
        (messages(thinking=False), LATE, 1),
    ],
)
async def test_events_that_show_nothing_leave_a_silence_a_silence(
    encoder: Encoder, steps: list[Step], expected: int
) -> None:
    got = await bodies(encoder, steps)
    assert max(silences(got)) == pytest.approx(KEEPALIVE_S)
    assert pings(got) == expected


@pytest.mark.parametrize(
    ("encoder", "steps"),
    [(responses(), CALL), (chat(), CALL), (messages(thinking=True), THOUGHT), (chat(), THOUGHT)],
)
async def test_a_stream_that_shows_something_each_second_is_never_pinged(encoder: Encoder, steps: list[Step]) -> None:
    assert pings(await bodies(encoder, steps)) == 0


@pytest.mark.parametrize("slow_s", [10.0, 40.0])
async def test_a_client_that_reads_slowly_is_not_silent(slow_s: float) -> None:
    steps: list[Step] = [Started(1, 0), *each_second(20, TextDelta(0, "a")), *ended(StopKind.END)]
    assert pings(await bodies(chat(), steps, slow_s=slow_s)) == 0


async def test_what_comes_while_a_comment_is_still_being_taken_waits_for_its_end() -> None:
    steps: list[Step] = [Started(1, 0), Pause(KEEPALIVE_S + 1), TextDelta(0, "a"), *ended(StopKind.END)]
    got = await bodies(chat(), steps, slow_s=5.0)
    assert [at for at, _ in got[:2]] == [KEEPALIVE_S + 5.0, KEEPALIVE_S + 10.0]
    assert got[0][1].endswith(b":\n\n")
    assert b'"a"' in got[1][1]


@pytest.mark.parametrize("how", [AnswerFailed, lambda error: error])
async def test_a_stream_that_fails_while_its_first_comment_is_taken_says_so_inside(how: Any) -> None:
    steps: list[Step] = [Pause(KEEPALIVE_S + 1), how(ApiError(ErrorKind.BUSY, "gone"))]
    got = await bodies(chat(), steps, slow_s=5.0)
    assert [at for at, _ in got[:2]] == [KEEPALIVE_S + 5.0, KEEPALIVE_S + 10.0]
    assert b"gone" in got[1][1]
