"""What the documentation names exists, and what exists is documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from saiserve import limits
from saiserve.config import SETTINGS
from saiserve.metering.metrics import METRICS, Kind

ROOT = Path(__file__).parent.parent


def table_names(path: Path) -> set[str]:
    """Names in backquotes in the first column of a page's tables."""
    return set(re.findall(r"^\| `([A-Za-z_0-9]+)` \|", path.read_text("utf-8"), re.MULTILINE))


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    assert table_names(ROOT / "docs/settings.md") == {setting.name for setting in SETTINGS}


def test_documented_defaults_are_the_real_ones() -> None:
    text = (ROOT / "docs/settings.md").read_text("utf-8")
    for setting in SETTINGS:
        if setting.default:
            assert f"| `{setting.name}` | {setting.default} |" in text


def test_every_limit_is_documented_with_its_value() -> None:
    documented = dict(
        re.findall(r"^\| `([A-Z_]+)` \| ([^|]+) \|", (ROOT / "docs/limits.md").read_text("utf-8"), re.MULTILINE)
    )
    real = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert documented.keys() == real.keys()
    for name, value in real.items():
        assert float(documented[name].replace(",", "")) == float(value)


def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    real = {m.name + ("_total" if m.kind is Kind.COUNTER else "") for m in METRICS}
    assert table_names(ROOT / "docs/metrics.md") == real


def test_commands_in_the_readme_exist() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"make ([a-z]+)", readme))
    assert targets >= {"serve", "test", "cluster", "check", "accept"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


def test_no_file_names_a_machine_or_a_registry() -> None:
    """Tracked text stays free of registry hosts and of paths of one machine."""
    words = ["py" + "pi.org", "pythonho" + "sted", "npm" + "js.org", "/wo" + "rk/main", "/tm" + "p/t1"]
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*"),
        *ROOT.glob("swimcluster/**/*.py"),
        *ROOT.glob("saiserve/**/*.py"),
    ]:
        if path.is_file():
            text = path.read_text("utf-8", "replace")
            assert not [word for word in words if word in text], path
