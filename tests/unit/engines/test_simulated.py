"""The engine without weights keeps the contract of one with."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import trio

from saiserve.engines.messages import (
    Accepted,
    EngineReply,
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    Generate,
    Progress,
    Prompt,
    RefusalReason,
    Refused,
    Sampling,
    Tokens,
)
from saiserve.engines.simulated import Fault, FaultKind, SimulatedEngine, SimulatedSettings, parse_simulated
from saiserve.engines.simulated_model import piece_of
from saiserve.errors import SettingsError

pytestmark = pytest.mark.autojump


def generate(text: str = "Tell me.", **more: object) -> Generate:
    values: dict[str, object] = {"sampling": Sampling(seed=7), "max_tokens": 64, **more}
    return Generate("x", "simulated", Prompt(text=text), **values)  # type: ignore[arg-type]


async def run(engine: SimulatedEngine, request: Generate) -> list[EngineReply]:
    async with engine.generate(request) as messages:
        return [message async for message in messages]


def ids(messages: list[EngineReply]) -> tuple[int, ...]:
    return tuple(token for message in messages if isinstance(message, Tokens) for token in message.ids)


async def test_an_answer_goes_on_from_any_token_as_if_it_had_never_stopped() -> None:
    whole = ids(await run(SimulatedEngine(), generate()))
    assert len(whole) == 64
    for cut in range(65):
        rest = await run(SimulatedEngine(), generate(resume_tokens=whole[:cut]))
        assert whole[:cut] + ids(rest) == whole
        assert isinstance(rest[-1], Finished)
        assert rest[-1].completion_tokens == 64


async def test_an_answer_that_goes_on_from_a_wrong_token_becomes_another() -> None:
    whole = ids(await run(SimulatedEngine(), generate()))
    wrong = (*whole[:9], whole[9] ^ 3)
    assert ids(await run(SimulatedEngine(), generate(resume_tokens=wrong))) != whole[10:]


async def test_seed_and_prompt_make_the_answer_and_temperature_zero_ignores_the_seed() -> None:
    async def answer(text: str, **sampling: float) -> tuple[int, ...]:
        return ids(await run(SimulatedEngine(), generate(text, sampling=Sampling(**sampling))))  # type: ignore[arg-type]

    assert await answer("a", seed=1) == await answer("a", seed=1) != await answer("a", seed=2)
    assert await answer("a", seed=1) != await answer("b", seed=1)
    assert await answer("a", seed=1, temperature=0) == await answer("a", seed=2, temperature=0)


async def test_tokens_end_inside_characters_and_join_to_text() -> None:
    pieces = [piece_of(token) for token in ids(await run(SimulatedEngine(), generate()))]
    b"".join(pieces).decode()
    assert any(not is_text(piece) for piece in pieces)


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


async def test_more_tokens_than_asked_for_are_never_made_and_none_when_resumed_full() -> None:
    engine = SimulatedEngine()
    messages = await run(engine, generate(max_tokens=5))
    assert len(ids(messages)) == 5
    full = await run(engine, generate(max_tokens=5, resume_tokens=ids(messages)))
    assert [type(message) for message in full] == [Accepted, *[Progress] * (len(full) - 2), Finished]
    assert isinstance(full[-1], Finished)
    assert full[-1].reason is FinishReason.LENGTH


async def test_a_prompt_seen_before_is_cached_within_its_isolation() -> None:
    engine = SimulatedEngine()
    first = await run(engine, generate("a prompt of some length"))
    again = await run(engine, generate("a prompt of some length, and more"))
    other = await run(engine, generate("a prompt of some length", isolation="tenant"))
    cached = [m.cached_tokens for run_ in (first, again, other) for m in run_ if isinstance(m, Accepted)]
    assert cached[0] == cached[2] == 0 < cached[1]


async def test_lanes_queue_by_priority_and_refuse_when_the_queue_is_full() -> None:
    engine = SimulatedEngine(SimulatedSettings(lanes=1, queue_max=2))
    order: list[str] = []

    async def one(name: str, priority: int) -> None:
        messages = await run(engine, msgspec.structs.replace(generate(priority=priority), id=name))
        order.append(name if isinstance(messages[-1], Finished) else f"{name} refused")

    async with trio.open_nursery() as nursery:
        for name, priority in (("first", 0), ("low", -1), ("high", 1), ("late", 0)):
            nursery.start_soon(one, name, priority)
            await trio.sleep(0.001)
    assert order == ["late refused", "first", "high", "low"]
    assert engine.load.busy == engine.load.queued == engine.load.queued_tokens == 0


async def test_waiting_and_prefill_show_signs_of_life() -> None:
    engine = SimulatedEngine(SimulatedSettings(lanes=1, prefill_rate=1.0))
    last = silence = 0.0
    async with engine.generate(generate("x" * 400)) as messages:
        async for message in messages:
            silence = max(silence, trio.current_time() - last)
            last = trio.current_time()
            if isinstance(message, Tokens):
                break
    assert trio.current_time() >= 100
    assert silence <= 1.0


@pytest.mark.parametrize(
    ("act", "kind"),
    [(SimulatedEngine.crash, FailureKind.CRASH), (lambda e: e.faults.append(Fault(FaultKind.CRASH, 5)), None)],
)
async def test_a_crash_ends_all_that_runs_and_the_engine_comes_back(
    act: Callable[[SimulatedEngine], None], kind: FailureKind | None
) -> None:
    engine = SimulatedEngine()
    ends: list[EngineReply] = []

    async def one(text: str) -> None:
        ends.append((await run(engine, generate(text)))[-1])

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(one, f"Question {number}")
        await trio.sleep(0.02)
        act(engine)
    assert all(isinstance(end, Failed) and end.kind is FailureKind.CRASH for end in ends)
    (refused,) = await run(engine, generate())
    assert isinstance(refused, Refused)
    assert refused.reason is RefusalReason.LOADING
    await trio.sleep(1)
    engine.faults.clear()
    assert isinstance((await run(engine, generate()))[-1], Finished)


def test_settings_are_read_from_a_model_path() -> None:
    settings = parse_simulated("simulated:tiny?lanes=2&decode_rate=50&answer_tokens=8&crash=POISON@3&stall=SLOW")
    assert (settings.model, settings.lanes, settings.decode_rate, settings.answer_tokens) == ("tiny", 2, 50.0, 8)
    assert settings.faults == (Fault(FaultKind.CRASH, 3, "POISON"), Fault(FaultKind.STALL, 0, "SLOW"))
    assert parse_simulated("simulated:").model == "simulated"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("simulated:x?lane=2", "lane"),
        ("simulated:x?lanes=two", "not a number"),
        ("simulated:x?crash=A@b", "MARKER@TOKEN"),
        ("simulated:x?model=y", "model"),
    ],
)
def test_settings_that_are_wrong_are_named(path: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        parse_simulated(path)


async def test_a_script_answers_the_prompts_it_knows_and_goes_on_from_any_token(tmp_path) -> None:
    file = tmp_path / "script.json"
    file.write_text('[{"when": ["naïve", "42"], "say": "Ünïcode 😀!"}, {"when": ["naïve"], "say": ""}]')
    engine = SimulatedEngine(parse_simulated(f"simulated:simulated?script={file}"))
    whole = ids(await run(engine, generate("A naïve 42.")))
    assert b"".join(map(piece_of, whole)).decode() == "Ünïcode 😀!"
    for cut in range(len(whole) + 1):
        rest = ids(await run(engine, generate("A naïve 42.", resume_tokens=whole[:cut])))
        assert whole[:cut] + rest == whole
    assert ids(await run(engine, generate("naïve"))) == ()
    assert ids(await run(engine, generate("other"))) == ids(await run(SimulatedEngine(), generate("other")))


@pytest.mark.parametrize("content", [None, "{}", '[{"when": "text", "say": "x"}]', '[{"wen": ["x"], "say": "x"}]'])
async def test_a_script_that_is_none_is_refused_with_its_form(content, tmp_path) -> None:
    file = tmp_path / "script.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match=r"simulated script .*write \["):
        parse_simulated(f"simulated:sim?script={file}")
