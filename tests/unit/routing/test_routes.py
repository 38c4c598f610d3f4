"""Routes from configuration, and the pages about them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from saiserve.errors import SettingsError
from saiserve.limits import ROUTES_MAX
from saiserve.routing.chain import decide, strategy_name
from saiserve.routing.default import DEFAULT_CHAIN
from saiserve.routing.describe import describe
from saiserve.routing.registry import BUILT_IN, Registry, installed
from saiserve.routing.routes import read_routes
from tests.unit.routing.places import place, upstream, wish
from tests.unit.routing.simulated_fleet import chat

REGISTRY = Registry(BUILT_IN)
PAGE = Path(__file__).parents[3] / "docs/routing.md"


def test_a_route_names_models_fallbacks_upstreams_and_a_chain() -> None:
    table = {
        "models": ["small"],
        "fallbacks": ["large"],
        "upstreams": ["cloud"],
        "chain": ["model", {"use": "cost", "ceiling": 1.0}, "load"],
    }
    rule = read_routes({"auto": table}, REGISTRY, upstreams=["cloud", "other"]).rule("auto")
    assert [strategy_name(strategy) for strategy in rule.chain] == ["model", "cost", "load"]
    request = describe(
        chat("1", "hi"),
        b"",
        model=rule.name,
        models=rule.models,
        fallbacks=rule.fallbacks,
        upstreams=rule.upstreams,
    )
    fleet = [place("a", "large"), place("b", "small", draining=True), upstream("cloud"), upstream("other")]
    decision = decide(rule.chain, fleet, request)
    assert [r.candidate.node for r in decision.attempts] == ["cloud", "a"]


def test_a_name_that_is_no_route_is_a_model_and_nothing_stands_in_for_it() -> None:
    rule = read_routes({}, REGISTRY).rule("small")
    assert (rule.models, rule.fallbacks, rule.upstreams, rule.chain) == ((), (), frozenset(), DEFAULT_CHAIN)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"model": []}, "'model' is not a key"),
        ({"models": "small"}, "models must be a list"),
        ({"fallbacks": [""]}, "fallbacks must be a list"),
        ({"upstreams": ["moon"]}, "no upstream target is called 'moon'"),
        ({"chain": []}, "chain must be a list"),
        ({"chain": "model"}, "chain must be a list"),
        ({"chain": ["nothing"]}, "no strategy is called 'nothing'"),
    ],
)
def test_a_wrong_route_is_refused_by_name(table: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=f"route 'auto': .*{words}"):
        read_routes({"auto": table}, REGISTRY)


def test_there_is_an_end_to_routes() -> None:
    with pytest.raises(SettingsError, match="at most"):
        read_routes({str(number): {} for number in range(ROUTES_MAX + 1)}, REGISTRY)


def test_the_page_names_every_built_in_strategy() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \| [^|]+ \| [^|]+ \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert set(installed().names) <= {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}


def test_the_strategy_on_the_page_works() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    strategy = names["night_shift"](nodes=["b"])  # type: ignore[operator]
    assert decide([strategy], [place("a"), place("b")], wish()).first == place("b")
