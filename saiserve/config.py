"""What an operator may set, where it may come from, and what is refused.

One table (`SETTINGS`): a name, a default, a meaning, a parser. Every setting is an environment variable, a key of
saiserve.toml and, unless it is a secret, a flag of `saiserve node`. Flag over environment over file over default.
"""

from __future__ import annotations

import difflib
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import platformdirs

from saiserve import config_values as values
from saiserve.auth import ClientKey
from saiserve.config_file import read_file
from saiserve.config_values import NAME_CHARACTERS_MAX, PORT_DEFAULT
from saiserve.engines.llamacpp.settings import AdapterSettings
from saiserve.engines.upstream.targets import Target, read_targets
from saiserve.errors import SettingsError
from saiserve.models.catalog import DEMO_MODEL
from saiserve.routing.registry import installed
from saiserve.routing.routes import Routes, read_routes
from swimcluster.address import Address
from swimcluster.errors import ConfigError

SECRET_CHARACTERS_STRONG: Final = 16
"""Shorter secrets draw a warning."""

_OWN_PREFIXES: Final = ("CLUSTER_", "SAI_")
"""Variables of these prefixes are ours: one that resembles a setting is refused, any other warned of."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a node is told, read, checked and typed."""

    hosts: tuple[str, ...] = ("0.0.0.0",)  # noqa: S104 - a server's default; the README says what to firewall
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
    speed_floor: float = 0.0
    threads: int = 0
    kv_type: str = "f16"
    gpu_layers: int = 0
    cache_mib: int = 1024
    drain_s: float = 30.0
    hub_endpoint: str = ""
    hub_token: str = field(default="", repr=False)
    cors_origins: tuple[str, ...] = ("*",)
    image_urls: tuple[str, ...] = ()
    body_mib: int = 64
    models_on_demand: str = ""
    keep_alive_s: float = 300.0
    memory_mib: int = 0
    kv_cells: int = 0
    window_full: bool = True
    flash_attention: bool = True
    reencode: bool = True
    gpu_devices: tuple[str, ...] = ()
    gpu_split: str = "layer"
    tensor_split: tuple[float, ...] = ()
    numa: str = "off"
    mmap: bool | None = None
    mlock: bool = False
    speculate: bool = False
    upstreams: tuple[Target, ...] = ()
    routes: Routes = field(default_factory=Routes)
    isolate_keys: bool = False
    lora: tuple[AdapterSettings, ...] = ()
    mmproj: Path = Path()
    model_tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields that the file's `[model.NAME]` tables set otherwise, by that name."""
    warnings: tuple[str, ...] = ()

    def for_model(self, *names: str) -> Settings:
        """The settings that hold for the model of this id or these aliases."""
        folded = {name.casefold() for name in names}
        own = next((table for name, table in self.model_tables.items() if name.casefold() in folded), None)
        return self if own is None else replace(self, **own)

    @property
    def host(self) -> str:
        """The address to listen on that is told of: the first."""
        return self.hosts[0]

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
    per_model: bool = False
    """Whether a `[model.NAME]` table of the file may set it for one model."""
    is_table: bool = False
    """Whether it is a table of the file, and a JSON object elsewhere."""

    @property
    def flag(self) -> str:
        """The command-line flag, e.g. `--cluster-seed`."""
        return "--" + self.name.lower().replace("_", "-")


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("HOST", "hosts", "0.0.0.0", "address to listen on, or several, comma-separated, of which the first is told to others", values.hosts),  # noqa: S104
    Setting("PORT", "port", str(PORT_DEFAULT), "port for clients and other nodes", values.whole(1, 65535)),
    Setting("NODE_NAME", "node_name", "", "name of this member; default: the hostname, with -PORT unless it is 8081", values.member_name),
    Setting("API_KEY", "api_keys", "", "client keys, comma-separated, each optionally name:key; default: a random one, shown once", values.client_keys, secret=True),
    Setting("MODELS", "models", DEMO_MODEL, "models to serve: ids, aliases, paths, URLs, hub references; none for a node without engine", values.text),
    Setting("MODELS_ON_DEMAND", "models_on_demand", "", "models to load when they are asked for, written as in MODELS, which is none by default then", values.text),
    Setting("KEEP_ALIVE_S", "keep_alive_s", "300", "seconds after its last use until a model loaded on demand is unloaded; 0: never", values.seconds, per_model=True),
    Setting("MEMORY_MIB", "memory_mib", "0", "memory for all models together, MiB; 0: four fifths of the machine's, or of its cgroup limit", values.whole(0, 1 << 30)),
    Setting("CLUSTER_ADVERTISE", "cluster_advertise", "", "host:port other nodes use for this one; default: a routable address of this host", values.address),
    Setting("CLUSTER_SEED", "cluster_seeds", "", "addresses or names of nodes to join, comma-separated; default: none, a first node", values.addresses),
    Setting("CLUSTER_SECRET", "cluster_secrets", "", "shared by all nodes; new,old while rotating; default: none, a single box", values.secret_list, secret=True),
    Setting("CLUSTER_NAME", "cluster_name", "default", "clusters of different names never mix", values.member_name),
    Setting("CLUSTER_TRANSPORT", "cluster_transport", "tcp", "tcp: gossip over PORT as HTTP; udp: datagrams on the same port number", values.choice("tcp", "udp")),
    Setting("STATE_DIR", "state_dir", "", "folder for what must survive a restart; default: the platform's state folder", values.path),
    Setting("MODEL_DIR", "model_dir", "", "folder for fetched models; default: the platform's cache folder", values.path),
    Setting("SAI_ROUTE_LOG", "route_log", "0", "1: one log line per routed request", values.flag),
    Setting("LOG_LEVEL", "log_level", "info", "debug, info, warning or error", values.choice("debug", "info", "warning", "error")),
    Setting("CONTEXT_TOKENS", "context_tokens", "0", "longest conversation in tokens; 0: what the model was made for, at most 8192", values.whole(0, 1 << 24), per_model=True),
    Setting("LANES", "lanes", "0", "streams served at once; 0: measured when the model loads", values.whole(0, 64), per_model=True),
    Setting("SPEED_FLOOR", "speed_floor", "0", "share of its speed alone that each of several streams keeps, by which lanes are measured; 0: half, but four lanes", values.share, per_model=True),
    Setting("THREADS", "threads", "0", "engine threads; 0: all cores", values.whole(0, 1024), per_model=True),
    Setting("KV_TYPE", "kv_type", "f16", "precision of the KV cache: f16, q8_0 or q4_0", values.choice("f16", "q8_0", "q4_0"), per_model=True),
    Setting("KV_CELLS", "kv_cells", "0", "KV cells that all streams of a model share, in tokens; 0: 16384, or one whole conversation", values.whole(0, 1 << 26), per_model=True),
    Setting("WINDOW_FULL", "window_full", "1", "0: layers with a sliding window keep little more than that: less memory, fewer lanes, less reuse", values.flag, per_model=True),
    Setting("FLASH_ATTENTION", "flash_attention", "1", "0: attention by matrices, which takes memory and a KV cache that is not quantised", values.flag, per_model=True),
    Setting("REENCODE", "reencode", "1", "0: weights stay in the file's own types, also those that llama.cpp computes with slowly", values.flag, per_model=True),
    Setting("GPU_LAYERS", "gpu_layers", "0", "layers to put on a GPU; -1: all", values.whole(-1, 1000), per_model=True),
    Setting("GPU_DEVICES", "gpu_devices", "", "devices to use, by llama.cpp's names, comma-separated; default: all", values.words, per_model=True),
    Setting("GPU_SPLIT", "gpu_split", "layer", "how devices share a model: none, layer or row", values.choice("none", "layer", "row"), per_model=True),
    Setting("TENSOR_SPLIT", "tensor_split", "", "share of each device, such as 3,1; default: by free memory", values.shares, per_model=True),
    Setting("NUMA", "numa", "off", "how to use NUMA nodes: off, distribute, isolate or numactl", values.choice("off", "distribute", "isolate", "numactl"), per_model=True),
    Setting("MMAP", "mmap", "", "1: map the file of the weights; 0: read it into memory; default: up to 512 MiB are read, for a CPU", values.flag_or_unset, per_model=True),
    Setting("SPECULATE", "speculate", "0", "1: a stream alone guesses its next tokens from prompt and answer and computes several at once", values.flag, per_model=True),
    Setting("MLOCK", "mlock", "0", "1: keep weights in RAM, never swapped; the process must be allowed to", values.flag, per_model=True),
    Setting("MMPROJ", "mmproj", "", "projector file (GGUF) that lets the model see images; default: it does not", values.path, per_model=True),
    Setting("LORA", "lora", "", "LoRA adapters as NAME=PATH, or NAME=PATH@SCALE, comma-separated; each is served as the model ID:NAME", values.adapters, per_model=True),
    Setting("CACHE_MIB", "cache_mib", "1024", "host memory for parked conversation prefixes, MiB for each model", values.whole(0, 1 << 20), per_model=True),
    Setting("DRAIN_S", "drain_s", "30", "seconds that running requests may take to end after SIGTERM", values.seconds),
    Setting("UPSTREAMS", "upstreams", "", "targets outside the cluster that routes and model names may use: [upstreams.NAME] tables of the file, a JSON object elsewhere", values.tables, is_table=True),
    Setting("ROUTES", "routes", "", "names with models, fallbacks, upstreams and a chain of strategies: [routes.NAME] tables of the file, a JSON object elsewhere", values.tables, is_table=True),
    Setting("ISOLATE_KEYS", "isolate_keys", "0", "1: requests share cached prompt prefixes only with those of the same client key", values.flag),
    Setting("HF_ENDPOINT", "hub_endpoint", "", "hub to fetch models from, when not the public one", values.text),
    Setting("HF_TOKEN", "hub_token", "", "token for models that need one", values.text, secret=True),
    Setting("IMAGE_URLS", "image_urls", "", "hosts to fetch images from that requests name by URL, comma-separated; * for all of the public internet; default: none, such images are refused", values.image_hosts),
    Setting("BODY_MIB", "body_mib", "64", "largest request body, MiB; 413 beyond", values.whole(1, 64)),
    Setting("CORS_ORIGINS", "cors_origins", "*", "web pages that may use this node: * for all, localhost for this machine's, else origins, comma-separated", values.words),
)  # fmt: skip

_DEFAULT: Final = "its default"
_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


def load_settings(environment: Mapping[str, str], flags: Mapping[str, str], file: Path | None = None) -> Settings:
    """Read, merge and check all settings.

    Raises:
        SettingsError: the first fault found, naming the setting, where it came from and the mend.
    """
    warnings: list[str] = []
    from_file, tables = read_file(file, _BY_NAME)
    _refuse_slips(environment, warnings)
    parsed: dict[str, Any] = {}
    defaulted: dict[str, bool] = {}
    for setting in SETTINGS:
        text, origin = _pick(setting, flags, environment, from_file)
        defaulted[setting.name] = origin == _DEFAULT
        try:
            parsed[setting.field] = setting.parse(text)
        except (SettingsError, ConfigError) as error:
            # A secret's text must not be quoted.
            raise SettingsError(f"{setting.name} (from {origin}) {_hide(error, text, setting)}") from None
    if parsed["models_on_demand"] and defaulted["MODELS"]:
        parsed["models"] = "none"
    parsed["model_tables"] = tables
    parsed["upstreams"] = read_targets(parsed["upstreams"], environment)
    parsed["routes"] = _routes(parsed["routes"], parsed["upstreams"])
    return _finish(parsed, warnings)


def _routes(tables: Mapping[str, Any], targets: tuple[Target, ...]) -> Routes:
    """The routes, each naming only targets that are there and have a model of it."""
    if not tables:
        return Routes()
    routes = read_routes(tables, installed(), upstreams=[target.name for target in targets])
    for rule in routes.rules.values():
        wanted = {*(rule.models or (rule.name,)), *rule.fallbacks}
        for target in targets:
            if target.name in rule.upstreams and not wanted & set(target.models):
                raise SettingsError(
                    f"route {rule.name!r}: upstream {target.name!r} has none of its models; it has "
                    f"{', '.join(target.models)}: name one of them in models or fallbacks"
                )
    return routes


def _pick(
    setting: Setting, flags: Mapping[str, str], environment: Mapping[str, str], file: Mapping[str, str]
) -> tuple[str, str]:
    if setting.name in flags:
        return flags[setting.name], "the command line"
    if environment.get(setting.name, "") != "":
        return environment[setting.name], "the environment"
    if setting.name in file:
        return file[setting.name], "the file"
    return setting.default, _DEFAULT


def _hide(error: Exception, text: str, setting: Setting) -> str:
    message = str(error)
    return message.replace(text, "(hidden)") if setting.secret and text else message


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


def _finish(parsed: dict[str, Any], warnings: list[str]) -> Settings:
    if not parsed["api_keys"]:
        parsed["api_keys"] = (ClientKey("key1", f"sai-{secrets.token_urlsafe(24)}".encode()),)
        parsed["api_key_generated"] = True
    if not parsed["node_name"]:
        parsed["node_name"] = default_node_name(parsed["port"])
    parsed["state_dir"] = (
        parsed["state_dir"] if parsed["state_dir"] != Path() else platformdirs.user_state_path("saiserve")
    )
    parsed["model_dir"] = (
        parsed["model_dir"] if parsed["model_dir"] != Path() else platformdirs.user_cache_path("saiserve") / "models"
    )
    if parsed["cluster_secrets"] and parsed["cluster_advertise"] is None:
        parsed["cluster_advertise"] = Address(routable_host(parsed["hosts"][0]), parsed["port"])
    settings = Settings(**parsed)
    _check(settings, warnings)
    return Settings(**parsed, warnings=tuple(warnings))


def _check(settings: Settings, warnings: list[str]) -> None:
    """Settings that contradict each other are refused; weak ones are warned of."""
    client_secrets = {key.secret.decode() for key in settings.api_keys}
    if client_secrets & set(settings.cluster_secrets):
        raise SettingsError("API_KEY equals CLUSTER_SECRET: clients could then speak as nodes; choose different values")
    if len(set(settings.cluster_secrets)) < len(settings.cluster_secrets):
        raise SettingsError("CLUSTER_SECRET names the same secret twice: it is one, or new,old while it is changed")
    if settings.cluster_seeds and not settings.cluster_secrets:
        raise SettingsError("CLUSTER_SEED is set but CLUSTER_SECRET is not: give this node the cluster's secret")
    _check_engine(settings, "", warnings)
    for name in settings.model_tables:
        _check_engine(settings.for_model(name), f" for {name}", warnings)
    warnings += [
        f"upstream {target.name!r}: its key travels unencrypted to {target.url}; use https"
        for target in settings.upstreams
        if target.key and target.url.startswith("http://") and not target.is_loopback
    ]
    advertise = settings.cluster_advertise
    if advertise is not None and advertise.is_unspecified:
        raise SettingsError(
            f"CLUSTER_ADVERTISE is {advertise}, where nobody can connect: give this host's own address and port"
        )
    if advertise is not None and not settings.cluster_secrets:
        warnings.append("CLUSTER_ADVERTISE is set but CLUSTER_SECRET is not: this node stays a single box")
    for name, given in (("API_KEY", client_secrets), ("CLUSTER_SECRET", settings.cluster_secrets)):
        if any(len(value) < SECRET_CHARACTERS_STRONG for value in given):
            warnings.append(
                f"{name} has under {SECRET_CHARACTERS_STRONG} characters and can be guessed: use a longer one"
            )


def _check_engine(settings: Settings, whose: str, warnings: list[str]) -> None:
    """The same for what an engine is told; `whose` says for which model, when not for all."""
    if settings.kv_type != "f16" and not settings.flash_attention:
        raise SettingsError(
            f"KV_TYPE is {settings.kv_type}{whose} but FLASH_ATTENTION is 0: a quantised cache needs flash attention; "
            "set FLASH_ATTENTION=1 or KV_TYPE=f16"
        )
    if 0 < settings.kv_cells < settings.context_tokens:
        raise SettingsError(
            f"KV_CELLS is {settings.kv_cells}{whose}, less than one conversation of CONTEXT_TOKENS "
            f"({settings.context_tokens}): raise it or lower CONTEXT_TOKENS"
        )
    if not settings.gpu_layers and (settings.gpu_devices or settings.tensor_split):
        warnings.append(f"GPU_DEVICES and TENSOR_SPLIT do nothing{whose} while GPU_LAYERS is 0")
    if settings.lanes and settings.speed_floor:
        warnings.append(f"SPEED_FLOOR does nothing{whose} while LANES is set")


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
