"""Strategies by name: built-ins and plug-ins are the same kind of entry point and are loaded by the same code.

A plug-in distribution declares, under the group `saiserve.strategies`, a name and a factory: a callable that takes the
strategy's configuration as keyword arguments and returns a `Strategy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from saiserve.errors import SettingsError
from saiserve.routing.chain import Strategy

GROUP = "saiserve.strategies"

Factory = Callable[..., Strategy]

BUILT_IN: tuple[EntryPoint, ...] = tuple(
    EntryPoint(name, f"saiserve.routing.factories:{name}", GROUP)
    for name in (
        "model",
        "capability",
        "capability_by_rules",
        "capability_by_model",
        "escalate_on_signals",
        "escalate_on_answer",
        "split",
        "cost",
        "load",
        "cache",
    )
)
"""Declared here rather than in the distribution's metadata so that a source tree that is not installed has them."""


class Registry:
    """Factories by name, loaded when they are first used.

    Raises:
        SettingsError: two entry points claim one name; a plug-in cannot replace a built-in.
    """

    def __init__(self, points: Iterable[EntryPoint]) -> None:
        self._points: dict[str, EntryPoint] = {}
        for point in points:
            other = self._points.setdefault(point.name, point)
            if other.value != point.value:
                raise SettingsError(
                    f"two strategies are called {point.name!r} ({other.value} and {point.value}): uninstall one of them"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._points))

    def strategy(self, name: str, options: Mapping[str, Any] | None = None) -> Strategy:
        """Build one strategy.

        Raises:
            SettingsError: no such name, a plug-in that does not load, or options its factory refuses.
        """
        point = self._points.get(name)
        if point is None:
            raise SettingsError(f"no strategy is called {name!r}: there are {', '.join(self.names)}")
        try:
            factory: Factory = point.load()
            strategy = factory(**(options or {}))
        except Exception as error:
            raise SettingsError(f"strategy {name!r} ({point.value}) cannot be set up: {error}") from error
        if not callable(strategy):
            raise SettingsError(
                f"strategy {name!r} ({point.value}) is not callable: its factory must return a Strategy"
            )
        return strategy

    def chain(self, steps: Sequence[str | Mapping[str, Any]]) -> tuple[Strategy, ...]:
        """Build a chain from configuration: names, or tables `{use = name, …options}`, in order.

        Raises:
            SettingsError: an empty chain, a step that is neither, or what `strategy` raises.
        """
        if not steps:
            raise SettingsError("a chain needs at least one strategy")
        return tuple(self._step(step) for step in steps)

    def _step(self, step: str | Mapping[str, Any]) -> Strategy:
        if isinstance(step, str):
            return self.strategy(step)
        if not isinstance(step, Mapping) or not isinstance(step.get("use"), str):
            raise SettingsError(f"a step of a chain is a name or a table with `use`, not {step!r}")
        return self.strategy(step["use"], {key: value for key, value in step.items() if key != "use"})


def installed() -> Registry:
    """The built-ins and the plug-ins of the environment."""
    return Registry((*BUILT_IN, *entry_points(group=GROUP)))
