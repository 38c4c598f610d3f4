"""What a program hands to `open_cluster` and its calls, checked before anything is done with it."""

from __future__ import annotations

from swimcluster.address import Address, parse_address
from swimcluster.config import Config
from swimcluster.config_checks import check_address
from swimcluster.driver import RequestHandler
from swimcluster.errors import ConfigError


def check_arguments(config: Config, on_request: RequestHandler | None, join_wait_s: float) -> None:
    """Raise ConfigError when an argument of `open_cluster` cannot be used."""
    if not isinstance(config, Config):
        raise ConfigError(f"config must be a Config, as `Config.lan(...)` makes it, not {type(config).__name__}")
    if on_request is not None and not callable(on_request):
        raise ConfigError(f"on_request must be an async function of (sender, payload), not {type(on_request).__name__}")
    if isinstance(join_wait_s, bool) or not isinstance(join_wait_s, int | float) or not join_wait_s >= 0:
        raise ConfigError(f"join_wait_s is {join_wait_s!r}: it must be a number of seconds, 0 or more")


def address_of(what: str, value: Address | str) -> Address:
    """Return an address given as text or as such; ConfigError names `what` when it is neither."""
    address = parse_address(value) if isinstance(value, str) else value
    check_address(what, address)
    return address
