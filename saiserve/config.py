"""What an operator may set, where it may come from, and what is refused.

One table (`SETTINGS`): a name, a default, a meaning, a parser. Every setting is an environment variable, a key of
saiserve.toml and, unless it is a secret, a flag of `saiserve node`. Flag over environment over file over default.
"""

from __future__ import annotations

import difflib
import os
import secrets
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import platformdirs

from saiserve.auth import ClientKey, parse_client_keys
from saiserve.errors import SettingsError
from saiserve.models.catalog import DEMO_MODEL
from swimcluster.address import Address, parse_address
from swimcluster.errors import ConfigError

PORT_DEFAULT: Final = 8081
SECRET_CHARACTERS_STRONG: Final = 16
"""Shorter secrets draw a warning."""
NAME_CHARACTERS_MAX: Final = 63

FILE_DEFAULT: Final = "saiserve.toml"
_OWN_PREFIXES: Final = ("CLUSTER_", "SAI_")
"""Variables of these prefixes are ours: one that resembles a setting is refused, any other warned of."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a node is told, read, checked and typed."""

    host: str = "0.0.0.0"  # noqa: S104 - a server's default; the README says what to firewall
    port: int = PORT_DEFAULT
    node_name: str = ""
    api_keys: tuple[ClientKey, ...] = field(default=(), repr=False)
    api_key_generated: bool = False
    models: str = DEMO_MODEL
    cluster_advertise: Address | None = None
    cluster_seeds: tuple[Address, ...] = ()
    cluster_secrets: tuple[str, ...] = field(default=(), repr=False)
    cluster_name: str = "default"
    cluster_transport: str = "tcp"
    state_dir: Path = Path()
    model_dir: Path = Path()
    route_log: bool = False
    log_level: str = "info"
    context_tokens: int = 0
    lanes: int = 0
    threads: int = 0
    kv_type: str = "f16"
    gpu_layers: int = 0
    cache_mib: int = 1024
    drain_s: float = 30.0
    hub_endpoint: str = ""
    hub_token: str = field(default="", repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def is_clustered(self) -> bool:
        """Whether this node may meet others: it has a cluster secret."""
        return bool(self.cluster_secrets)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: how it is named, read and explained."""

    name: str
    field: str
    default: str
    meaning: str
    parse: Callable[[str], Any]
    secret: bool = False

    @property
    def flag(self) -> str:
        """The command-line flag, e.g. `--cluster-seed`."""
        return "--" + self.name.lower().replace("_", "-")


def _text(value: str) -> str:
    return value.strip()


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        try:
            number = int(value.strip())
        except ValueError:
            raise SettingsError(f"must be a whole number from {low} to {high}, not {value!r}") from None
        if not low <= number <= high:
            raise SettingsError(f"must be from {low} to {high}, not {number}")
        return number

    return parse


def _seconds(value: str) -> float:
    try:
        number = float(value.strip())
    except ValueError:
        number = -1.0
    if not 0 <= number <= 86_400:
        raise SettingsError(f"must be seconds from 0 to 86400, not {value!r}")
    return number


def _flag(value: str) -> bool:
    match value.strip().lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off" | "":
            return False
        case _:
            raise SettingsError(f"must be 0 or 1, not {value!r}")


def _choice(*words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        word = value.strip().lower()
        if word not in words:
            raise SettingsError(f"must be one of {', '.join(words)}, not {value!r}")
        return word

    return parse


def _name(value: str) -> str:
    name = value.strip()
    if len(name) > NAME_CHARACTERS_MAX or any(not (c.isalnum() or c in "._-") or not c.isascii() for c in name):
        raise SettingsError(f"must be at most {NAME_CHARACTERS_MAX} letters, digits, '.', '_' or '-', not {value!r}")
    return name


def _address(value: str) -> Address | None:
    return parse_address(value, default_port=PORT_DEFAULT) if value.strip() else None


def _addresses(value: str) -> tuple[Address, ...]:
    return tuple(parse_address(part, default_port=PORT_DEFAULT) for part in value.split(",") if part.strip())


def _secrets(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _client_keys(value: str) -> tuple[ClientKey, ...]:
    try:
        keys = parse_client_keys(value)
    except SettingsError as error:
        raise SettingsError(str(error).removeprefix("API_KEY: ").removesuffix(".")) from None
    if len({key.name for key in keys}) < len(keys):
        raise SettingsError("gives two keys the same name: rename one")
    return keys


def _path(value: str) -> Path:
    return Path(value).expanduser() if value.strip() else Path()


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("HOST", "host", "0.0.0.0", "address to listen on", _text),  # noqa: S104
    Setting("PORT", "port", str(PORT_DEFAULT), "port for clients and other nodes", _whole(1, 65535)),
    Setting("NODE_NAME", "node_name", "", "name of this member; default: the hostname, with -PORT unless it is 8081", _name),
    Setting("API_KEY", "api_keys", "", "client keys, comma-separated, each optionally name:key; default: a random one, shown once", _client_keys, secret=True),
    Setting("MODELS", "models", DEMO_MODEL, "models to serve: ids, aliases, paths, URLs, hub references; none for a node without engine", _text),
    Setting("CLUSTER_ADVERTISE", "cluster_advertise", "", "host:port other nodes use for this one; default: a routable address of this host", _address),
    Setting("CLUSTER_SEED", "cluster_seeds", "", "addresses or names of nodes to join, comma-separated; default: none, a first node", _addresses),
    Setting("CLUSTER_SECRET", "cluster_secrets", "", "shared by all nodes; new,old while rotating; default: none, a single box", _secrets, secret=True),
    Setting("CLUSTER_NAME", "cluster_name", "default", "clusters of different names never mix", _name),
    Setting("CLUSTER_TRANSPORT", "cluster_transport", "tcp", "tcp: gossip over PORT as HTTP; udp: datagrams on the same port number", _choice("tcp", "udp")),
    Setting("STATE_DIR", "state_dir", "", "folder for what must survive a restart; default: the platform's state folder", _path),
    Setting("MODEL_DIR", "model_dir", "", "folder for fetched models; default: the platform's cache folder", _path),
    Setting("SAI_ROUTE_LOG", "route_log", "0", "1: one log line per routed request", _flag),
    Setting("LOG_LEVEL", "log_level", "info", "debug, info, warning or error", _choice("debug", "info", "warning", "error")),
    Setting("CONTEXT_TOKENS", "context_tokens", "0", "longest conversation in tokens; 0: what the model was made for, at most 8192", _whole(0, 1 << 24)),
    Setting("LANES", "lanes", "0", "streams served at once; 0: measured when the model loads", _whole(0, 64)),
    Setting("THREADS", "threads", "0", "engine threads; 0: all cores", _whole(0, 1024)),
    Setting("KV_TYPE", "kv_type", "f16", "precision of the KV cache: f16, q8_0 or q4_0", _choice("f16", "q8_0", "q4_0")),
    Setting("GPU_LAYERS", "gpu_layers", "0", "layers to put on a GPU; -1: all", _whole(-1, 1000)),
    Setting("CACHE_MIB", "cache_mib", "1024", "host memory for parked conversation prefixes, MiB for each model", _whole(0, 1 << 20)),
    Setting("DRAIN_S", "drain_s", "30", "seconds that running requests may take to end after SIGTERM", _seconds),
    Setting("HF_ENDPOINT", "hub_endpoint", "", "hub to fetch models from, when not the public one", _text),
    Setting("HF_TOKEN", "hub_token", "", "token for models that need one", _text, secret=True),
)  # fmt: skip

_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


def load_settings(environment: Mapping[str, str], flags: Mapping[str, str], file: Path | None = None) -> Settings:
    """Read, merge and check all settings.

    Raises:
        SettingsError: the first fault found, naming the setting, where it came from and the mend.
    """
    warnings: list[str] = []
    from_file = _read_file(file)
    _refuse_slips(environment, warnings)
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        text, origin = _pick(setting, flags, environment, from_file)
        try:
            values[setting.field] = setting.parse(text)
        except (SettingsError, ConfigError) as error:
            # A secret's text must not be quoted.
            raise SettingsError(f"{setting.name} (from {origin}) {_hide(error, text, setting)}") from None
    return _finish(values, warnings)


def _pick(
    setting: Setting, flags: Mapping[str, str], environment: Mapping[str, str], file: Mapping[str, str]
) -> tuple[str, str]:
    if setting.name in flags:
        return flags[setting.name], "the command line"
    if environment.get(setting.name, "") != "":
        return environment[setting.name], "the environment"
    if setting.name in file:
        return file[setting.name], "the file"
    return setting.default, "its default"


def _hide(error: Exception, text: str, setting: Setting) -> str:
    message = str(error)
    return message.replace(text, "(hidden)") if setting.secret and text else message


def _read_file(path: Path | None) -> dict[str, str]:
    if path is None:
        path = Path(FILE_DEFAULT)
        if not path.exists():
            return {}
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    result: dict[str, str] = {}
    for key, value in table.items():
        name = key.upper()
        if name not in _BY_NAME:
            raise SettingsError(f"{path}: {key!r} is no setting{_did_you_mean(name)}")
        if isinstance(value, bool):
            result[name] = "1" if value else "0"
        elif isinstance(value, list):
            result[name] = ",".join(str(item) for item in value)
        elif isinstance(value, (str, int, float)):
            result[name] = str(value)
        else:
            raise SettingsError(f"{path}: {key} must be a text, a number, true, false or a list")
    return result


def _did_you_mean(name: str) -> str:
    close = difflib.get_close_matches(name, list(_BY_NAME), n=1, cutoff=0.75)
    return f": did you mean {close[0]}?" if close else f"; known are {', '.join(_BY_NAME)}"


def _refuse_slips(environment: Mapping[str, str], warnings: list[str]) -> None:
    """A variable that is almost one of ours would silently do nothing: refuse ours, warn of others."""
    for name in environment:
        if name in _BY_NAME:
            continue
        is_own = name.startswith(_OWN_PREFIXES)
        close = [c for c in difflib.get_close_matches(name, list(_BY_NAME), n=1, cutoff=0.85) if c not in environment]
        if close and is_own:
            raise SettingsError(f"{name} (from the environment) is no setting: did you mean {close[0]}?")
        if is_own:
            warnings.append(f"{name} is set but is no setting of this server")
        elif close and close[0] not in {"HOST", "PORT"}:
            # HOSTS, PORTS and the like are common names of other programs' variables.
            warnings.append(f"{name} is set but is no setting of this server; {close[0]} is")


def _finish(values: dict[str, Any], warnings: list[str]) -> Settings:
    if not values["api_keys"]:
        values["api_keys"] = (ClientKey("key1", f"sai-{secrets.token_urlsafe(24)}".encode()),)
        values["api_key_generated"] = True
    if not values["node_name"]:
        values["node_name"] = default_node_name(values["port"])
    values["state_dir"] = (
        values["state_dir"] if values["state_dir"] != Path() else platformdirs.user_state_path("saiserve")
    )
    values["model_dir"] = (
        values["model_dir"] if values["model_dir"] != Path() else platformdirs.user_cache_path("saiserve") / "models"
    )
    if values["cluster_secrets"] and values["cluster_advertise"] is None:
        values["cluster_advertise"] = Address(routable_host(values["host"]), values["port"])
    settings = Settings(**values)
    _check(settings, warnings)
    return Settings(**values, warnings=tuple(warnings))


def _check(settings: Settings, warnings: list[str]) -> None:
    """Settings that contradict each other are refused; weak ones are warned of."""
    client_secrets = {key.secret.decode() for key in settings.api_keys}
    if client_secrets & set(settings.cluster_secrets):
        raise SettingsError("API_KEY equals CLUSTER_SECRET: clients could then speak as nodes; choose different values")
    if settings.cluster_seeds and not settings.cluster_secrets:
        raise SettingsError("CLUSTER_SEED is set but CLUSTER_SECRET is not: give this node the cluster's secret")
    advertise = settings.cluster_advertise
    if advertise is not None and advertise.is_unspecified:
        raise SettingsError(
            f"CLUSTER_ADVERTISE is {advertise}, where nobody can connect: give this host's own address and port"
        )
    if advertise is not None and not settings.cluster_secrets:
        warnings.append("CLUSTER_ADVERTISE is set but CLUSTER_SECRET is not: this node stays a single box")
    for name, values in (("API_KEY", client_secrets), ("CLUSTER_SECRET", settings.cluster_secrets)):
        if any(len(value) < SECRET_CHARACTERS_STRONG for value in values):
            warnings.append(
                f"{name} has under {SECRET_CHARACTERS_STRONG} characters and can be guessed: use a longer one"
            )


def default_node_name(port: int) -> str:
    """The hostname, with the port when it is not the usual one, so that several nodes on a host differ."""
    host = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in socket.gethostname())
    suffix = "" if port == PORT_DEFAULT else f"-{port}"
    return host[: NAME_CHARACTERS_MAX - len(suffix)] + suffix or f"node{suffix}"


def routable_host(bind_host: str) -> str:
    """An address of this host that others could use: the bound one, or the one its default route leaves from."""
    if not Address(bind_host, 1).is_unspecified:
        return bind_host
    # Connecting a UDP socket sends nothing; it only asks the kernel which source address it would use.
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((target, 9))
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def settings_from(flags: Mapping[str, str], file: Path | None = None) -> Settings:
    """Settings of this process: `flags` by setting name, the rest from os.environ and the file."""
    return load_settings(os.environ, flags, file)
