"""`saiserve`: run a node, list and fetch models, look at the cluster.

Only this file talks to a terminal. It imports the server late, so that a bare install can say what it lacks.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from saiserve.config import Settings
    from saiserve.models.catalog import CatalogEntry

SERVE_MODULES: Final = ("hypercorn", "starlette", "h11", "httpx2", "msgspec", "jinja2", "platformdirs", "psutil")
"""What every command but --version needs; a node with an engine needs llama_cpp, numpy and llguidance too."""
ENGINE_MODULES: Final = ("llama_cpp", "numpy", "llguidance")

INSTALL_SERVE: Final = "pip install '.[serve]' in the source folder"

EXIT_SETTINGS: Final = 2
"""Exit code for wrong settings; nothing was started."""
EXIT_FAILED: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--version" in arguments:
        print(f"saiserve {metadata.version('swimcluster')}")
        return 0
    missing = _missing(SERVE_MODULES)
    if missing:
        return _complain(f"the server needs the extra 'serve' (not installed: {', '.join(missing)}): {INSTALL_SERVE}")
    from saiserve.errors import SettingsError

    parser = _parser()
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        return _complain(_no_argument(unknown[0], is_node=parsed.command is _node))
    if parsed.command is None:
        parser.print_help()
        return EXIT_SETTINGS
    try:
        code = int(parsed.command(parsed))
        sys.stdout.flush()
    except SettingsError as error:
        from saiserve.cli_models import AskError

        return _complain(str(error), EXIT_FAILED if isinstance(error, AskError) else EXIT_SETTINGS)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `saiserve models | head`: whoever reads has enough. What is left in the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return code


def _parser() -> argparse.ArgumentParser:
    from saiserve.config import SETTINGS

    parser = argparse.ArgumentParser(
        prog="saiserve",
        description="An LLM server whose nodes find each other and route for themselves.",
        allow_abbrev=False,
    )
    parser.set_defaults(command=None)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(title="commands")
    usage = "saiserve node [--SETTING VALUE ...] [--config FILE] [--dry-run]"
    node = commands.add_parser("node", help="run a node", usage=usage, allow_abbrev=False)
    for setting in SETTINGS:
        if setting.secret:
            node.add_argument(setting.flag, dest=setting.name, action=_NoFlag, nargs="?", help=argparse.SUPPRESS)
        else:
            node.add_argument(
                setting.flag, dest=setting.name, metavar="VALUE", help=f"{setting.meaning} (also {setting.name})"
            )
    node.set_defaults(command=_node)
    models = commands.add_parser("models", help="list the models known by name", allow_abbrev=False)
    models.set_defaults(command=_models)
    fetch = commands.add_parser("fetch", help="fetch a model's file without starting a node", allow_abbrev=False)
    fetch.add_argument("model", help="id, alias, URL or hub reference")
    fetch.set_defaults(command=_fetch)
    state = commands.add_parser("state", help="show the cluster as one node sees it", allow_abbrev=False)
    url = f"http://127.0.0.1:{os.environ.get('PORT') or 8081}"
    state.add_argument("--url", default=url, help=f"any node; default: {url}, by PORT")
    state.add_argument("--json", action="store_true", help="the node's answer as it is")
    state.set_defaults(command=_state)
    load = commands.add_parser("load", help="have a running node load a model", allow_abbrev=False)
    load.add_argument(
        "--no-pin", action="store_true", help="let it go when it is idle, as if a client had asked for it"
    )
    load.set_defaults(command=_load)
    unload = commands.add_parser("unload", help="have a running node unload a model", allow_abbrev=False)
    unload.set_defaults(command=_unload)
    for command in (load, unload):
        command.add_argument("model", help="id or alias, or what MODELS takes")
        command.add_argument("--url", default=url, help=f"the node; default: {url}, by PORT")
    bench = commands.add_parser("bench", help="measure a model on this machine", allow_abbrev=False)
    bench.add_argument("model", nargs="?", default="smollm2-135m", help="id, alias, path, URL or hub reference")
    bench.add_argument("--beside", type=Path, metavar="PATH", help="a llama-server binary to measure beside")
    bench.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    bench.set_defaults(command=_bench)
    for command in (node, fetch, bench):
        command.add_argument("--config", type=Path, help="a saiserve.toml; default: ./saiserve.toml where there is one")
    node.add_argument("--dry-run", action="store_true", help="check the settings and exit")
    return parser


def _no_argument(text: str, *, is_node: bool) -> str:
    from saiserve.config import SETTINGS

    flags = [setting.flag for setting in SETTINGS if is_node and not setting.secret]
    name = text.partition("=")[0]
    close = difflib.get_close_matches(name, flags, n=1, cutoff=0.75)
    return f"{name!r} is no argument of this command" + (
        f": did you mean {close[0]}?" if close else "; --help after the command lists them"
    )


class _NoFlag(argparse.Action):
    """Where a secret would be a flag: say where it belongs, without repeating it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error(
            f"{self.option_strings[0]} does not exist, because every user of the machine sees a command line: "
            f"set {self.dest} in the environment or in saiserve.toml"
        )


def _settings(parsed: argparse.Namespace) -> Settings:
    from saiserve.config import SETTINGS, settings_from

    flags = {s.name: getattr(parsed, s.name) for s in SETTINGS if getattr(parsed, s.name, None) is not None}
    return settings_from(flags, parsed.config)


def _node(parsed: argparse.Namespace) -> int:
    settings = _settings(parsed)
    from saiserve.models.catalog import builtin_catalog, parse_models
    from saiserve.models.served import on_demand_models

    entries = parse_models(settings.models, builtin_catalog())
    entries += on_demand_models(settings, entries, builtin_catalog())
    missing = _missing(ENGINE_MODULES)
    if missing and any(not entry.source.startswith("simulated:") for entry in entries):
        return _complain(
            f"serving {entries[0].id} needs the extra 'serve' whole (not installed: {', '.join(missing)}): "
            f"{INSTALL_SERVE}, or set MODELS=none for a node without engine"
        )
    if parsed.dry_run:
        for warning in settings.warnings:
            print(f"warning: {warning}")
        _check_models(settings, entries)
        print(f"settings are good: {settings.node_name} serves {', '.join(e.id for e in entries) or 'no model'}")
        return 0
    from saiserve.serve import serve_node

    return serve_node(settings)


def _check_models(settings: Settings, entries: Sequence[CatalogEntry]) -> None:
    """Refuse what the start would: lengths beyond a model's, files that are not here; nothing is fetched."""
    import trio

    from saiserve.models.store import store_from
    from saiserve.residency.source import context_of

    for entry in entries:
        context_of(settings, entry)
        if entry.source.startswith(("path:", "package:")):
            trio.run(store_from(settings).locate, entry)


def _models(_parsed: argparse.Namespace) -> int:
    from saiserve.models.catalog import builtin_catalog

    for entry in builtin_catalog().entries.values():
        print(f"{entry.id:16} {', '.join(entry.aliases):48} {entry.title} · {entry.license}")
    return 0


def _fetch(parsed: argparse.Namespace) -> int:
    import trio

    from saiserve.models.catalog import builtin_catalog, parse_models
    from saiserve.models.store import progress_line, store_from

    settings = _settings(parsed)
    for entry in parse_models(parsed.model, builtin_catalog(), "the command"):
        report = progress_line(entry.id, _to_stderr, live=sys.stderr.isatty())
        print(trio.run(partial(store_from(settings).locate, entry, progress=report)))
    return 0


def _bench(parsed: argparse.Namespace) -> int:
    missing = _missing(ENGINE_MODULES)
    if missing:
        return _complain(
            f"an engine needs the extra 'serve' whole (not installed: {', '.join(missing)}): {INSTALL_SERVE}"
        )
    import trio

    from saiserve.bench.command import AnswerError, bench, show
    from saiserve.bench.processes import stop_like_ctrl_c

    stop_like_ctrl_c()
    try:
        result = trio.run(bench, _settings(parsed), parsed.model, parsed.beside, _to_stderr)
    except AnswerError as error:
        return _complain(str(error), EXIT_FAILED)
    print(show(result, as_json=parsed.json))
    return 0


def _state(parsed: argparse.Namespace) -> int:
    from saiserve.cli_models import ask

    state = ask("GET", parsed.url, "/cluster/state")
    print(json.dumps(state) if parsed.json else state_table(state))
    return 0


def _load(parsed: argparse.Namespace) -> int:
    from saiserve.cli_models import load

    return load(parsed.url, parsed.model, pin=not parsed.no_pin)


def _unload(parsed: argparse.Namespace) -> int:
    from saiserve.cli_models import unload

    return unload(parsed.url, parsed.model)


def state_table(state: dict[str, Any]) -> str:
    """One line per member: name, address, state, how it is reached, and each model with its busy lanes.

    Of a member that is not alive only the models' names are shown: it tells nothing of their state or load any more.
    """
    rows = []
    for member in state["members"]:
        is_alive = member["state"] == "alive"
        models = ", ".join(
            f"{model['id']} {model['state']} {model['busy']:g}/{model['lanes']}" if is_alive else model["id"]
            for model in member["models"]
        )
        condition = "draining" if is_alive and member["draining"] else member["state"]
        rows.append((member["name"], member["address"], condition, member["reachability"], models or "no model"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )


def _missing(modules: Sequence[str]) -> list[str]:
    return [module for module in modules if importlib.util.find_spec(module) is None]


def _complain(message: str, code: int = EXIT_SETTINGS) -> int:
    print(f"saiserve: {message}", file=sys.stderr)
    return code


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
