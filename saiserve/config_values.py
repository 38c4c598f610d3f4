"""How the text of one setting becomes a value, or a sentence that says what it must be.

The caller puts the setting's name and origin in front of the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from saiserve.api.image_hosts import ANY, is_host
from saiserve.auth import ClientKey, parse_client_keys
from saiserve.engines.llamacpp.settings import AdapterSettings
from saiserve.errors import SettingsError
from swimcluster.address import Address, parse_address

PORT_DEFAULT: Final = 8081
NAME_CHARACTERS_MAX: Final = 63
SHARES_MAX: Final = 64
SCALE_MAX: Final = 100.0
ADAPTER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def text(value: str) -> str:
    """A text without blanks around it."""
    return value.strip()


def whole(low: int, high: int) -> Callable[[str], int]:
    """Whole numbers in a range, its ends included."""

    def parse(value: str) -> int:
        try:
            number = int(value.strip())
        except ValueError:
            raise SettingsError(f"must be a whole number from {low} to {high}, not {value!r}") from None
        if not low <= number <= high:
            raise SettingsError(f"must be from {low} to {high}, not {number}")
        return number

    return parse


def seconds(value: str) -> float:
    """A span of at most a day, in seconds."""
    try:
        number = float(value.strip())
    except ValueError:
        number = -1.0
    if not 0 <= number <= 86_400:
        raise SettingsError(f"must be seconds from 0 to 86400, not {value!r}")
    return number


def share(value: str) -> float:
    """A share from 0 to 1, as a number."""
    try:
        number = float(value.strip())
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise SettingsError(f"must be a share from 0 to 1, such as 0.5, not {value!r}")
    return number


def flag(value: str) -> bool:
    """Yes or no."""
    match value.strip().lower():
        case "1" | "true" | "yes" | "on":
            return True
        case "0" | "false" | "no" | "off" | "":
            return False
        case _:
            raise SettingsError(f"must be 0 or 1, not {value!r}")


def flag_or_unset(value: str) -> bool | None:
    """Yes, no, or nothing said."""
    return flag(value) if value.strip() else None


def choice(*words: str) -> Callable[[str], str]:
    """One word of several, in any case."""

    def parse(value: str) -> str:
        word = value.strip().lower()
        if word not in words:
            raise SettingsError(f"must be one of {', '.join(words)}, not {value!r}")
        return word

    return parse


def member_name(value: str) -> str:
    """A member's name; empty stays empty."""
    name = value.strip()
    if len(name) > NAME_CHARACTERS_MAX or any(not (c.isalnum() or c in "._-") or not c.isascii() for c in name):
        raise SettingsError(f"must be at most {NAME_CHARACTERS_MAX} letters, digits, '.', '_' or '-', not {value!r}")
    return name


def address(value: str) -> Address | None:
    """host:port, None when empty."""
    return parse_address(value, default_port=PORT_DEFAULT) if value.strip() else None


def addresses(value: str) -> tuple[Address, ...]:
    """Addresses, comma-separated."""
    return tuple(parse_address(part, default_port=PORT_DEFAULT) for part in value.split(",") if part.strip())


def secret_list(value: str) -> tuple[str, ...]:
    """Secrets, comma-separated."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


def client_keys(value: str) -> tuple[ClientKey, ...]:
    """Client keys, each optionally `name:key`."""
    try:
        keys = parse_client_keys(value)
    except SettingsError as error:
        raise SettingsError(str(error).removeprefix("API_KEY: ").removesuffix(".")) from None
    if len({key.name for key in keys}) < len(keys):
        raise SettingsError("gives two keys the same name: rename one")
    return keys


def path(value: str) -> Path:
    """A path; `~` is the home folder, empty the empty path."""
    return Path(value).expanduser() if value.strip() else Path()


def words(value: str) -> tuple[str, ...]:
    """Words, comma-separated."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


def hosts(value: str) -> tuple[str, ...]:
    """Addresses to listen on, without the brackets that IPv6 ones may have."""
    found = tuple(word.strip("[]") for word in words(value))
    if not all(found) or not found or len(set(found)) < len(found):
        raise SettingsError(f"must be addresses such as 127.0.0.1,::1, each once, not {value!r}")
    return found


def image_hosts(value: str) -> tuple[str, ...]:
    """Hosts without port, in lower case and without the brackets of IPv6 addresses; * is any."""
    found = tuple(word.lower().strip("[]").rstrip(".") for word in words(value))
    if not all(word == ANY or is_host(word) for word in found):
        raise SettingsError(
            f"must be hosts such as images.example,192.0.2.7, or *, without port and path, not {value!r}"
        )
    return found


def adapters(value: str) -> tuple[AdapterSettings, ...]:
    """LoRA adapters as NAME=PATH or NAME=PATH@SCALE, comma-separated."""
    found: dict[str, AdapterSettings] = {}
    for word in words(value):
        name, equals, rest = word.partition("=")
        place, at, scale = rest.rpartition("@")
        number = _scale(scale) if at else 1.0
        if not equals or not rest or number is None or not ADAPTER_NAME.fullmatch(name) or name in found:
            raise SettingsError(f"must be adapters such as poet=poet.gguf@0.5, each name once, not {word!r}")
        found[name] = AdapterSettings(name=name, path=str(path(place if at else rest)), scale=number)
    return tuple(found.values())


def _scale(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < abs(number) <= SCALE_MAX else None


def shares(value: str) -> tuple[float, ...]:
    """Numbers from 0 up, comma-separated, not all 0."""
    try:
        numbers = tuple(float(part) for part in words(value))
    except ValueError:
        raise SettingsError(f"must be numbers such as 3,1, not {value!r}") from None
    is_odd = any(not 0 <= number < 1e9 for number in numbers) or len(numbers) > SHARES_MAX
    if numbers and (is_odd or not sum(numbers)):
        raise SettingsError(f"must be at most {SHARES_MAX} numbers from 0 up, not all 0, not {value!r}")
    return numbers


def tables(value: str) -> dict[str, dict[str, Any]]:
    """A JSON object of objects; empty text is none."""
    if not value.strip():
        return {}
    try:
        return msgspec.json.decode(value, type=dict[str, dict[str, Any]])
    except msgspec.DecodeError as error:
        raise SettingsError(f"must be a JSON object of objects: {error}") from None
