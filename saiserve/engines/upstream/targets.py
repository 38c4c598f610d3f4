"""Upstream targets as an operator configures them: where they are, what they speak, what they may be used for.

A key comes from the environment or a file, never from the configuration itself, so that a file of settings or a command
line can be shown to others.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from saiserve.errors import SettingsError
from saiserve.fleet.facts import CAPABILITIES
from saiserve.limits import MODEL_NAME_CHARACTERS_MAX

TARGETS_MAX: Final = 64
MODELS_MAX: Final = 256
LANES_DEFAULT: Final = 64
CAPABILITIES_DEFAULT: Final = ("chat", "tools", "schema")
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class TargetDialect(enum.StrEnum):
    """What a target speaks."""

    OPENAI = "openai"
    """Chat Completions and Embeddings; the base URL ends in the version, as in `https://host/v1`."""
    ANTHROPIC = "anthropic"
    """Messages; the base URL is given with or without `/v1`."""


@dataclass(frozen=True, slots=True)
class TargetModel:
    """One model of a target."""

    id: str
    """As clients and routes name it."""
    name: str
    """As the target names it."""
    context_tokens: int = 0
    output_tokens: int = 0
    """The longest answer it can give; 0 = unknown."""
    capabilities: frozenset[str] = frozenset(CAPABILITIES_DEFAULT)
    price_in: float = 0.0
    price_out: float = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """One place outside the cluster."""

    name: str
    url: str
    dialect: TargetDialect
    models: Mapping[str, TargetModel]
    key: str = field(default="", repr=False)
    lanes: int = LANES_DEFAULT
    """Requests sent to it at once by this node."""
    limit_field: str = "max_tokens"
    """What an OpenAI-shaped target calls the limit on the answer."""

    @property
    def is_loopback(self) -> bool:
        """Whether it runs on this machine."""
        return urlsplit(self.url).hostname in _LOOPBACK


_TARGET_KEYS: Final = {"url", "dialect", "key_env", "key_file", "models", "lanes", "limit_field"}
_MODEL_KEYS: Final = {"name", "context_tokens", "output_tokens", "capabilities", "price_in", "price_out"}


def read_targets(tables: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[Target, ...]:
    """Read `[NAME]` tables of targets; keys are looked up at once, so that a missing one is found at the start.

    Raises:
        SettingsError: naming the target, the key at fault and the mend.
    """
    if len(tables) > TARGETS_MAX:
        raise SettingsError(f"there are {len(tables)} upstreams, at most {TARGETS_MAX} are allowed")
    return tuple(_target(name, _table(f"upstream {name!r}", table), environment) for name, table in tables.items())


def _target(name: str, table: Mapping[str, Any], environment: Mapping[str, str]) -> Target:
    at = f"upstream {name!r}"
    if "key" in table:
        raise SettingsError(
            f"{at}: the key itself must not stand here: name its variable in key_env or its file in key_file"
        )
    _known(at, table, _TARGET_KEYS)
    models = _models(at, table.get("models"))
    limit_field = _text(at, table, "limit_field", "max_tokens")
    if limit_field not in {"max_tokens", "max_completion_tokens"}:
        raise SettingsError(f"{at}: limit_field must be max_tokens or max_completion_tokens, not {limit_field!r}")
    return Target(
        name=_name(at, name),
        url=_url(at, _text(at, table, "url", "")),
        dialect=_dialect(at, _text(at, table, "dialect", "")),
        models={model.id: model for model in models},
        key=_key(at, table, environment),
        lanes=_whole(at, table, "lanes", LANES_DEFAULT, low=1),
        limit_field=limit_field,
    )


def _models(at: str, given: Any) -> list[TargetModel]:
    """`models` is a list of names that clients and target share, or a table from the clients' name to a table."""
    if isinstance(given, list) and given and all(isinstance(item, str) for item in given):
        given = {item: {} for item in given}
    if not isinstance(given, Mapping) or not given or len(given) > MODELS_MAX:
        raise SettingsError(f"{at}: models must name 1 to {MODELS_MAX} models, as a list of names or as tables")
    return [
        _model(f"{at}, model {model!r}", model, _table(f"{at}, model {model!r}", table))
        for model, table in given.items()
    ]


def _model(at: str, model: str, table: Mapping[str, Any]) -> TargetModel:
    _known(at, table, _MODEL_KEYS)
    if not model or len(model) > MODEL_NAME_CHARACTERS_MAX or not model.isprintable():
        raise SettingsError(f"{at}: a model's name has 1 to {MODEL_NAME_CHARACTERS_MAX} printable characters")
    capabilities = table.get("capabilities", list(CAPABILITIES_DEFAULT))
    if not isinstance(capabilities, list) or not all(tag in CAPABILITIES for tag in capabilities):
        raise SettingsError(f"{at}: capabilities must be a list of {', '.join(CAPABILITIES)}")
    return TargetModel(
        id=model,
        name=_text(at, table, "name", model),
        context_tokens=_whole(at, table, "context_tokens", 0),
        output_tokens=_whole(at, table, "output_tokens", 0),
        capabilities=frozenset(capabilities),
        price_in=_price(at, table, "price_in"),
        price_out=_price(at, table, "price_out"),
    )


def _key(at: str, table: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    variable, file = _text(at, table, "key_env", ""), _text(at, table, "key_file", "")
    if variable and file:
        raise SettingsError(f"{at}: give key_env or key_file, not both")
    if variable:
        key = environment.get(variable, "").strip()
        if not key:
            raise SettingsError(f"{at}: key_env names {variable}, which is not set in the environment")
        return _sendable(at, key)
    if file:
        try:
            key = Path(file).expanduser().read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{at}: key_file {file} cannot be read: {error}") from error
        if not key:
            raise SettingsError(f"{at}: key_file {file} is empty")
        return _sendable(at, key)
    return ""


def _sendable(at: str, key: str) -> str:
    """A key that can stand in a header; its text is not quoted."""
    if not (key.isascii() and key.isprintable()):
        raise SettingsError(f"{at}: its key holds characters that no header can carry")
    return key


def _url(at: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise SettingsError(f"{at}: url {url!r} cannot be read: {error}") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise SettingsError(f"{at}: url must begin with http:// or https:// and a host, not {url!r}")
    if parts.username or parts.password:
        raise SettingsError(f"{at}: url must hold no credentials: use key_env or key_file")
    if parts.query or parts.fragment:
        raise SettingsError(f"{at}: url must end with its path, without ? or #")
    return url.rstrip("/")


def _dialect(at: str, word: str) -> TargetDialect:
    try:
        return TargetDialect(word)
    except ValueError:
        raise SettingsError(f"{at}: dialect must be {' or '.join(TargetDialect)}, not {word!r}") from None


def _name(at: str, name: str) -> str:
    if not name or len(name) > 63 or not name.isascii() or any(not (c.isalnum() or c in "._-") for c in name):
        raise SettingsError(f"{at}: a target's name has 1 to 63 letters, digits, '.', '_' or '-'")
    return name


def _table(at: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingsError(f"{at}: must be a table")
    return value


def _known(at: str, table: Mapping[str, Any], keys: set[str]) -> None:
    unknown = sorted(set(table) - keys)
    if unknown:
        raise SettingsError(f"{at}: {unknown[0]!r} is not a key; there are {', '.join(sorted(keys))}")


def _text(at: str, table: Mapping[str, Any], key: str, default: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise SettingsError(f"{at}: {key} must be a text")
    return value.strip()


def _whole(at: str, table: Mapping[str, Any], key: str, default: int, *, low: int = 0) -> int:
    value = table.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**31:
        raise SettingsError(f"{at}: {key} must be a whole number of at least {low}")
    return value


def _price(at: str, table: Mapping[str, Any], key: str) -> float:
    value = table.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise SettingsError(f"{at}: {key} must be currency units per million tokens, 0 or more")
    return float(value)
