"""Strategies by name, and decisions in words."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from saiserve.errors import SettingsError
from saiserve.routing.chain import decide, strategy_name
from saiserve.routing.default import DEFAULT_CHAIN
from saiserve.routing.explain import (
    HEADER_CHARACTERS_MAX,
    LINE_CHARACTERS_MAX,
    attempts_text,
    header_text,
    log_line,
    table,
)
from saiserve.routing.registry import BUILT_IN, GROUP, Registry, installed
from tests.unit.routing.places import place, wish

PLUGIN = EntryPoint("mine", f"{__name__}:plugin", GROUP)


def plugin(*, node: str = "b") -> object:
    def mine(slate, request):  # type: ignore[no-untyped-def]
        return slate.split(lambda c: c.node != node, f"wants {node}")

    return mine


def test_every_built_in_loads_by_name_and_the_default_chain_is_made_of_them() -> None:
    registry = installed()
    assert registry.chain(["model", "capability", "load", "cache"]) == DEFAULT_CHAIN
    tiers = [{"name": "s", "models": ["small"]}, {"name": "l", "models": ["large"]}]
    options: dict[str, dict[str, object]] = {
        "capability_by_rules": {"tiers": tiers, "rules": [{"tier": "l", "traits": ["tools"]}]},
        "capability_by_model": {"tiers": tiers, "judge": "small", "default": "s"},
        "escalate_on_signals": {"tiers": tiers, "signals": [{"turns": 3}]},
        "escalate_on_answer": {"tiers": tiers},
        "split": {"arms": {"small": 1}},
    }
    chain = registry.chain([{"use": point.name, **options.get(point.name, {})} for point in BUILT_IN])
    assert decide(chain, [place("a")], wish()).first == place("a")


def test_a_plug_in_is_used_like_a_built_in() -> None:
    chain = Registry((*BUILT_IN, PLUGIN)).chain(["model", {"use": "mine", "node": "a"}])
    assert strategy_name(chain[1]) == "mine"
    decision = decide(chain, [place("a"), place("b")], wish())
    assert decision.first == place("a")
    assert "mine: wants a" in table(decision)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], "at least one"),
        (["unknown"], "no strategy is called 'unknown'"),
        ([{"node": "a"}], "`use`"),
        ([3], "`use`"),
        ([{"use": "mine", "nod": 1}], "cannot be set up"),
        ([{"use": "split", "arms": {}}], "arms"),
        (["gone"], "cannot be set up"),
    ],
)
def test_a_wrong_chain_is_refused_with_a_sentence(steps: list[object], words: str) -> None:
    gone = EntryPoint("gone", "no_such_module:make", GROUP)
    with pytest.raises(SettingsError, match=words):
        Registry((*BUILT_IN, PLUGIN, gone)).chain(steps)  # type: ignore[arg-type]


def test_a_plug_in_cannot_take_a_built_ins_name() -> None:
    with pytest.raises(SettingsError, match="two strategies are called 'load'"):
        Registry((*BUILT_IN, EntryPoint("load", "other:load", GROUP)))


HOSTILE = 'x"\\\r\n2026-01-01 forged line\x1b[31m' + "é" * 500


def test_a_line_says_where_and_why_and_stays_one_short_printable_line() -> None:
    decision = decide(DEFAULT_CHAIN, [place("a"), place("b", busy=4.0)], wish())
    line = log_line(wish(), decision, entry="b")
    assert line.startswith("route=request-1 entry=b model=small node=a placement=peer why=")
    assert "lanes busy" in line
    for model in (HOSTILE, "small"):
        request = wish(model, id=HOSTILE)
        for candidates in ([place(HOSTILE, model)], [place("b", model)] * 2, []):
            decision = decide(DEFAULT_CHAIN, candidates, request)
            for text, limit in (
                (log_line(request, decision, entry=HOSTILE), LINE_CHARACTERS_MAX),
                (header_text(decision), HEADER_CHARACTERS_MAX),
            ):
                assert text.isascii()
                assert text.isprintable()
                assert len(text) <= limit


def test_a_header_names_node_model_and_labels() -> None:
    decision = decide(DEFAULT_CHAIN, [place("a")], wish())
    assert header_text(decision).startswith('node=a; model=small; why="model: ready | load: inside')
    assert header_text(decide(DEFAULT_CHAIN, [], wish())) == "refused=model_not_found"


def test_attempts_alike_in_a_row_are_one_with_their_number() -> None:
    assert attempts_text([]) == "none"
    assert attempts_text(["a(refused)"] * 26 + ["b(done)"]) == "a(refused) x26 -> b(done)"
    assert attempts_text(["a(x)", "b(x)", "a(x)"]) == "a(x) -> b(x) -> a(x)"
