"""Writes docs/swimcluster/reference.md from the docstrings of the public names: `python tools/swimcluster_reference.py`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
from pathlib import Path
from types import FunctionType
from typing import cast

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "swimcluster" / "reference.md"
sys.path.insert(0, str(ROOT))

import swimcluster  # noqa: E402
from swimcluster import events, rendezvous, testing, threaded  # noqa: E402
from swimcluster.prometheus_text import prometheus_text  # noqa: E402
from swimcluster.thread_face import ThreadedKeyRotation  # noqa: E402
from swimcluster.transport.memory import MemoryNetwork, MemoryTransport  # noqa: E402
from swimcluster.transport.udp import UdpTransport, open_udp_transport  # noqa: E402


def _is_event(thing: object) -> bool:
    return isinstance(thing, type) and thing.__module__ == events.__name__


SECTIONS: dict[str, list[object]] = {
    "Running a member": [swimcluster.open_cluster, swimcluster.Cluster, swimcluster.Subscription],
    "Keys": [sys.modules["swimcluster.rotation"].KeyRotation, swimcluster.Coverage],
    "Settings": [swimcluster.Config],
    "Members": [
        swimcluster.Member,
        swimcluster.MemberState,
        swimcluster.Reachability,
        swimcluster.Address,
        swimcluster.parse_address,
        swimcluster.JoinStatus,
        swimcluster.LeaveProgress,
    ],
    "Events": [thing for name in swimcluster.__all__ if _is_event(thing := getattr(swimcluster, name))],
    "Statistics": [swimcluster.Statistics, prometheus_text],
    "Errors": [
        value
        for name in swimcluster.__all__
        if isinstance(value := getattr(swimcluster, name), type) and issubclass(value, Exception)
    ],
    "Placing work": [rendezvous.owner, rendezvous.rank, rendezvous.Ring],
    "asyncio and threads": [
        threaded.open_cluster,
        threaded.ThreadedCluster,
        threaded.ThreadedSubscription,
        threaded.open_asyncio_cluster,
        threaded.AsyncioCluster,
        threaded.AsyncioSubscription,
        ThreadedKeyRotation,
    ],
    "Transports": [swimcluster.Transport, open_udp_transport, UdpTransport, MemoryNetwork, MemoryTransport],
    "The simulator": [testing.SimulatedCluster],
    "The machine": [swimcluster.Swim, swimcluster.Datagram, swimcluster.Exchange, swimcluster.PendingReply],
}


def page() -> str:
    """Return the whole page."""
    parts = ["# Reference\n\nMade from the docstrings by `tools/swimcluster_reference.py`.\n"]
    for title, things in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [entry(thing) for thing in things]
    return "\n".join(parts).rstrip() + "\n"


def entry(thing: object) -> str:
    """Return the entry of one name: signature, docstring, fields, methods."""
    if isinstance(thing, FunctionType):
        return f"### `{_name(thing)}`\n\n```python\n{_signature(thing)}\n```\n\n{_text(thing)}\n"
    assert isinstance(thing, type)
    lines = [f"### `{_name(thing)}`\n\n{_text(thing)}\n"]
    fields = _fields(thing)
    if fields:
        lines.append("| field | | meaning |\n| --- | --- | --- |")
        lines += [f"| `{name}` | `{_cell(kind)}` | {_cell(text)} |" for name, kind, text in fields]
        lines.append("")
    for name, member in _members(thing).items():
        if isinstance(member, property) and member.fget is not None:
            lines.append(f"**`{name}`** {' '.join(_text(member.fget).split())}\n")
        elif isinstance(member, FunctionType | classmethod | staticmethod):
            function = cast("FunctionType", getattr(member, "__func__", member))
            lines.append(f"```python\n{_signature(function)}\n```\n\n{_text(function)}\n")
    return "\n".join(lines)


def _members(thing: type) -> dict[str, object]:
    """Return what a class and its bases of this package define: the constructor where it is described, public names."""
    found: dict[str, object] = {}
    for owner in thing.__mro__:
        if owner.__module__.startswith("swimcluster"):
            for name, member in vars(owner).items():
                is_told = (
                    name == "__init__" and getattr(member, "__doc__", None) and not dataclasses.is_dataclass(owner)
                )
                if is_told or not name.startswith("_"):
                    found.setdefault(name, member)
    return found


def _fields(thing: type) -> list[tuple[str, str, str]]:
    """Return the fields of a dataclass or enum: name, type or value, and what stands beneath or beside them."""
    source = _source(thing)
    assert isinstance(source, ast.ClassDef)
    rows: dict[str, tuple[str, str]] = {}
    for node, after in zip(source.body, [*source.body[1:], ast.Pass()], strict=True):
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            rows[node.target.id] = (ast.unparse(node.annotation), str(text))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            rows[node.targets[0].id] = (ast.unparse(node.value), str(text))
    if dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            kind, text = rows.get(field.name, ("", ""))
            rows[field.name] = (kind, text or field.metadata.get("help", ""))
    return [(name, kind, text) for name, (kind, text) in rows.items() if not name.startswith("_")]


def _source(thing: type | FunctionType) -> ast.stmt:
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def _signature(function: FunctionType) -> str:
    source = _source(function)
    assert isinstance(source, ast.FunctionDef | ast.AsyncFunctionDef)
    prefix = "async def" if isinstance(source, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(source.returns)}" if source.returns else ""
    return f"{prefix} {source.name}({ast.unparse(source.args)}){returns}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _name(thing: object) -> str:
    """Return the name; two functions have one name, and the module tells them apart."""
    name = str(getattr(thing, "__name__", thing))
    is_threads = isinstance(thing, FunctionType) and thing.__module__ == threaded.__name__
    return f"threaded.{name}" if is_threads else name


def _text(thing: object) -> str:
    text = inspect.getdoc(thing) or ""
    for title in ("Args:", "Returns:", "Raises:"):
        text = text.replace(f"\n{title}\n", f"\n\n*{title[:-1]}*\n\n")
    return "\n".join(f"- {line.strip()}" if line.startswith("    ") else line for line in text.splitlines())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
