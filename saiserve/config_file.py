"""`saiserve.toml`: settings under their lower-case names, and tables with the settings of one model."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from saiserve.errors import SettingsError

if TYPE_CHECKING:
    from saiserve.config import Setting

FILE_DEFAULT: Final = "saiserve.toml"
MODEL_TABLE: Final = "model"
"""Tables of the file with the settings of one model: `[model."NAME"]`."""


def read_file(path: Path | None, known: Mapping[str, Setting]) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Settings by name as text, and the parsed fields that `[model.NAME]` tables set.

    Raises:
        SettingsError: the file cannot be read, or holds what is no setting.
    """
    if path is None:
        path = Path(FILE_DEFAULT)
        if not path.exists():
            return {}, {}
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        # An OSError's own words would name the path again.
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SettingsError(f"{path} cannot be read: {why}") from error
    tables = _model_tables(path, table.pop(MODEL_TABLE, {}), known)
    return {key.upper(): _as_text(path, key, value, known) for key, value in table.items()}, tables


def _model_tables(path: Path, tables: Any, known: Mapping[str, Setting]) -> dict[str, dict[str, Any]]:
    """The parsed `[model.NAME]` tables.

    Raises:
        SettingsError: a key is no setting of a model, or its value is wrong.
    """
    if not (isinstance(tables, dict) and all(isinstance(table, dict) for table in tables.values())):
        raise SettingsError(f'{path}: write the settings of one model as a table, [{MODEL_TABLE}."NAME"]')
    per_model = {name: setting for name, setting in known.items() if setting.per_model}
    parsed: dict[str, dict[str, Any]] = {}
    for name, table in tables.items():
        where = f'{path}: [{MODEL_TABLE}."{name}"]'
        own = parsed[name] = {}
        for key, value in table.items():
            text = _as_text(where, key, value, per_model)
            setting = per_model[key.upper()]
            try:
                own[setting.field] = setting.parse(text)
            except SettingsError as error:
                raise SettingsError(f"{where}: {key} {error}") from None
    return parsed


def _as_text(where: object, key: str, value: Any, known: Mapping[str, Setting]) -> str:
    """A value of the file as the environment would have it."""
    if key.upper() not in known:
        raise SettingsError(f"{where}: {key!r} is no setting{did_you_mean(key.upper(), known)}")
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, dict) and known[key.upper()].is_table:
        return msgspec.json.encode(value).decode()
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    if isinstance(value, (str, int, float)):
        return str(value)
    wanted = "a table" if known[key.upper()].is_table else "a text, a number, true, false or a list"
    raise SettingsError(f"{where}: {key} must be {wanted}")


def did_you_mean(name: str, known: Mapping[str, Setting]) -> str:
    """The end of a sentence that a name is no setting."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return f": did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
