"""Named routes at a node: models, fallbacks, splits, escalation by a held draft and by a judge, and faults in settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from saiserve.chat.events import AnswerEvent, ChoiceFinished, StopKind, TextDelta, ToolCallStarted, Usage
from saiserve.chat.request import Message, Role, TextPart, Tool
from saiserve.config import load_settings
from saiserve.engines.messages import Sampling
from saiserve.engines.simulated import SimulatedEngine
from saiserve.errors import SettingsError
from saiserve.node import Node
from saiserve.node_service import NodeService
from tests.fakes.node import chat, make_node, running

TIERS = [{"name": "fast", "models": ["weak"]}, {"name": "capable", "models": ["strong"]}]
BOTH = "weak=simulated:weak?answer_tokens=16,strong=simulated:strong?answer_tokens=16"


def routed(folder: Path, models: str = BOTH, **routes: dict[str, Any]) -> Node:
    return make_node(models, folder, ROUTES=json.dumps(routes))


def escalating(step: dict[str, Any]) -> dict[str, Any]:
    return {"models": ["weak", "strong"], "chain": ["model", step, "capability", "load", "cache"]}


async def answer(service: NodeService, **more: Any) -> tuple[str, list[AnswerEvent]]:
    """Where a request was answered, and how."""
    async with service.answer(chat("Tell me.", **{"model": "auto", **more})) as answered:
        events = [event async for event in answered.events]
    assert isinstance(events[-1], Usage), events[-1]
    return answered.route, events


def engine(node: Node, model: str) -> SimulatedEngine:
    source = node.residents.models[model].source
    assert isinstance(source, SimulatedEngine)
    return source


def text(events: list[AnswerEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.mark.autojump
async def test_a_route_answers_with_its_models_and_is_listed(tmp_path: Path) -> None:
    node = routed(tmp_path, auto={"models": ["strong"]})
    async with running(node) as (service, _):
        route, _ = await answer(service)
        cards = {card.id: card for card in service.models()}
        assert not engine(node, "weak").started
    assert "; strong;" in route
    assert cards["auto"].is_fitted_later
    assert cards["auto"].context_tokens == cards["strong"].context_tokens


@pytest.mark.autojump
async def test_a_fallback_stands_in_when_nobody_has_the_routes_models(tmp_path: Path) -> None:
    node = routed(tmp_path, auto={"models": ["elsewhere"], "fallbacks": ["weak"]})
    async with running(node) as (service, _):
        route, _ = await answer(service)
    assert "; weak;" in route
    assert "fallback model weak" in route


@pytest.mark.autojump
async def test_a_split_sends_all_of_a_conversation_to_one_arm(tmp_path: Path) -> None:
    step = {"use": "split", "arms": {"weak": 1, "strong": 1}}
    node = routed(tmp_path, auto={"models": ["weak", "strong"], "chain": ["model", step, "load"]})
    async with running(node) as (service, _):
        routes = [(await answer(service, id=f"r{n}", conversation=f"c{n % 8}"))[0] for n in range(16)]
    arms = ["weak" if "; weak;" in route else "strong" for route in routes]
    assert arms[:8] == arms[8:]
    assert set(arms) == {"weak", "strong"}


@pytest.mark.autojump
async def test_a_draft_the_model_was_sure_of_becomes_the_answer(tmp_path: Path) -> None:
    node = routed(tmp_path, auto=escalating({"use": "escalate_on_answer", "tiers": TIERS, "draft_tokens": 8}))
    async with running(node) as (service, tally):
        _, plain = await answer(service, model="weak", id="r0")
        route, events = await answer(service)
        assert node.view.in_flight == 0
        assert not engine(node, "strong").started
        assert len(engine(node, "weak").started) == 2
    assert "; weak;" in route
    assert events[-1] == plain[-1] or isinstance(events[-1], Usage)
    assert sum(isinstance(event, ChoiceFinished) for event in events) == 1
    assert all(event.logprobs is None for event in events if isinstance(event, TextDelta))
    assert tally.requests["auto", "done"] == 1


@pytest.mark.autojump
async def test_a_draft_that_is_dropped_is_never_seen_and_stops(tmp_path: Path) -> None:
    step = {"use": "escalate_on_answer", "tiers": TIERS, "draft_tokens": 8, "logprob_min": 0.0}
    node = routed(tmp_path, auto=escalating(step))
    async with running(node) as (service, _):
        _, strong = await answer(service, model="strong", id="r0", sampling=Sampling(seed=3))
        route, events = await answer(service, id="r1", sampling=Sampling(seed=3))
        assert node.view.in_flight == 0
        assert engine(node, "weak").load.busy == 0
        assert engine(node, "weak").generated < 16
    assert "; strong;" in route
    assert text(events) == text(strong)


@pytest.mark.autojump
async def test_a_draft_with_logprobs_that_were_asked_for_keeps_them(tmp_path: Path) -> None:
    node = routed(tmp_path, auto=escalating({"use": "escalate_on_answer", "tiers": TIERS, "draft_tokens": 8}))
    async with running(node) as (service, _):
        _, events = await answer(service, sampling=Sampling(seed=1, logprobs=0))
    entries = [entry for event in events if isinstance(event, TextDelta) for entry in event.logprobs or ()]
    assert isinstance(events[-1], Usage)
    assert len(entries) == events[-1].completion_tokens


@pytest.mark.autojump
async def test_a_draft_that_fails_leaves_the_answer_to_the_stronger_tier(tmp_path: Path) -> None:
    models = "weak=simulated:weak?internal=Tell@3,strong=simulated:strong?answer_tokens=16"
    node = routed(tmp_path, models, auto=escalating({"use": "escalate_on_answer", "tiers": TIERS, "draft_tokens": 8}))
    async with running(node) as (service, _):
        route, _ = await answer(service)
    assert "; strong;" in route


def judged(folder: Path, says: str) -> Node:
    script = folder / "judge.json"
    script.write_text(json.dumps([{"when": ["Tell me."], "say": says}]))
    models = f"{BOTH},judge=simulated:judge?script={quote(str(script))}"
    step = {"use": "capability_by_model", "judge": "judge", "tiers": TIERS, "default": "fast"}
    return routed(folder, models, auto=escalating(step))


@pytest.mark.autojump
@pytest.mark.parametrize(("says", "served"), [('{"tier":"capable"}', "strong"), ("no idea", "weak")])
async def test_a_judge_names_the_tier_and_its_failure_takes_the_default(tmp_path: Path, says: str, served: str) -> None:
    node = judged(tmp_path, says)
    async with running(node) as (service, _):
        route, _ = await answer(service, max_tokens=64)
        (asked,) = engine(node, "judge").started
    assert f"; {served};" in route
    assert asked.constraint is not None
    assert "Tell me." in str(asked.prompt)


@pytest.mark.autojump
async def test_a_judge_that_is_too_slow_is_not_waited_for(tmp_path: Path) -> None:
    models = f"{BOTH},judge=simulated:judge?decode_rate=0.1"
    step = {"use": "capability_by_model", "judge": "judge", "tiers": TIERS, "deadline_s": 1.0}
    node = routed(tmp_path, models, auto=escalating(step))
    async with running(node) as (service, _):
        route, _ = await answer(service)
        assert engine(node, "judge").load.busy == 0
    assert "; strong;" in route


@pytest.mark.autojump
async def test_a_request_for_a_route_is_told_of_tools_in_the_ways_of_the_model_that_serves_it(tmp_path: Path) -> None:
    script = tmp_path / "calls.json"
    call = '<tool_call>{"name": "look", "arguments": {"at": "it"}}</tool_call>'
    script.write_text(json.dumps([{"when": ["Tell me."], "say": call}]))
    node = routed(tmp_path, f"weak=simulated:weak?script={quote(str(script))}", auto={"models": ["weak"]})
    async with running(node) as (service, _):
        tools = (Tool("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}}),)
        _, events = await answer(service, tools=tools, max_tokens=256)
        prompt = engine(node, "weak").started[0].prompt
    (started,) = [event for event in events if isinstance(event, ToolCallStarted)]
    assert started.name == "look"
    assert [event.kind for event in events if isinstance(event, ChoiceFinished)] == [StopKind.TOOL_CALLS]
    assert "look" in str(prompt.messages)


@pytest.mark.autojump
async def test_escalation_by_signals_is_a_function_of_the_history(tmp_path: Path) -> None:
    step = {"use": "escalate_on_signals", "tiers": TIERS, "signals": [{"turns": 1}]}
    node = routed(tmp_path, auto=escalating(step))
    later = tuple(Message(role, (TextPart("Tell me."),)) for role in (Role.USER, Role.ASSISTANT, Role.USER))
    async with running(node) as (service, _):
        first, _ = await answer(service, id="r1")
        second, _ = await answer(service, id="r2", messages=later)
    assert "; weak;" in first
    assert "; strong;" in second


@pytest.mark.autojump
async def test_isolated_keys_share_no_prefix(tmp_path: Path) -> None:
    prompt = "The same long beginning. " * 40
    cached = {}
    for isolate in ("0", "1"):
        node = make_node("simulated:sim", tmp_path, ISOLATE_KEYS=isolate)
        async with running(node) as (service, _):
            for key in ("alice", "bob"):
                async with service.answer(chat(prompt, id=f"{key}{isolate}", key_name=key)) as answered:
                    usage = [event async for event in answered.events][-1]
                assert isinstance(usage, Usage)
                cached[isolate, key] = usage.cached_tokens
    assert cached["0", "bob"] > 0
    assert cached["1", "bob"] == 0


TARGET = {"url": "http://127.0.0.1:1/v1", "dialect": "openai", "models": ["m"]}


@pytest.mark.parametrize(
    ("routes", "upstreams", "words"),
    [
        ({"auto": {"model": ["weak"]}}, {}, "route 'auto': 'model' is not a key"),
        ({"auto": {"models": "weak"}}, {}, "route 'auto': models must be a list of names"),
        ({"auto": {"chain": ["fastest"]}}, {}, "route 'auto': no strategy is called 'fastest'"),
        ({"auto": {"chain": [{"use": "split", "arms": {"a": -1}}]}}, {}, "route 'auto': strategy 'split'"),
        ({"auto": {"chain": [{"use": "cost", "limit": 1}]}}, {}, "route 'auto': strategy 'cost'"),
        ({"auto": {"upstreams": ["cloud"]}}, {}, "route 'auto': no upstream target is called 'cloud'"),
        ({"auto": {"models": ["x"], "upstreams": ["t"]}}, {"t": TARGET}, "upstream 't' has none of its models"),
        ({}, {"t": TARGET | {"dialect": "grpc"}}, "upstream 't': dialect must be openai or anthropic"),
        ({}, {"t": TARGET | {"url": "host/v1"}}, "upstream 't': url must begin with http"),
        ({}, {"t": TARGET | {"url": "http://u:p@host/v1"}}, "upstream 't': url must hold no credentials"),
        ({}, {"t": TARGET | {"key": "secret"}}, "upstream 't': the key itself must not stand here"),
        ({}, {"t": TARGET | {"key_env": "NOT_SET"}}, "key_env names NOT_SET, which is not set"),
        ({}, {"t": TARGET | {"lanes": 0}}, "upstream 't': lanes must be a whole number of at least 1"),
        ({}, {"t": TARGET | {"models": {"m": {"prices": 1}}}}, "upstream 't', model 'm': 'prices' is not a key"),
        ({}, {"t": TARGET | {"models": []}}, "upstream 't': models must name"),
    ],
)
def test_faults_in_routes_and_upstreams_are_named(
    routes: dict[str, Any], upstreams: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings({"ROUTES": json.dumps(routes), "UPSTREAMS": json.dumps(upstreams)}, {})
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)


def test_tables_of_the_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "saiserve.toml"
    key = tmp_path / "key"
    key.write_text("from-a-file\n")
    file.write_text(
        f'models = "none"\n[upstreams.lab]\nurl = "http://127.0.0.1:1/v1"\ndialect = "openai"\nkey_file = "{key}"\n'
        '[upstreams.lab.models.big]\nname = "vendor/big"\nprice_in = 1.5\n[routes.auto]\nmodels = ["big"]\nupstreams = ["lab"]\n'
    )
    settings = load_settings({}, {}, file)
    (target,) = settings.upstreams
    assert target.key == "from-a-file"
    assert "from-a-file" not in repr(settings)
    assert target.models["big"].name == "vendor/big"
    assert settings.routes.rules["auto"].upstreams == {"lab"}
