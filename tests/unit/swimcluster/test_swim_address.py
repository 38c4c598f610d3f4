"""One address type: what is read, what is refused."""

from __future__ import annotations

import pytest

from swimcluster.address import Address, parse_address
from swimcluster.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:7946", Address("10.0.0.1", 7946)),
        ("[::1]:80", Address("::1", 80)),
        (" db-3.lan:1 ", Address("db-3.lan", 1)),
        ("host", Address("host", 5)),
        ("fd00::1", Address("fd00::1", 5)),
        ("[fd00::1]", Address("fd00::1", 5)),
    ],
)
def test_addresses_are_read_and_written_alike(text, address):
    assert parse_address(text, default_port=5) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text", ["", ":80", "[::1", "[::1]80", "a b:1", "u@h:1", "h:http", "h:70000", "h:٣", "h" * 254 + ":1"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match="not an address"):
        parse_address(text)


def test_a_missing_port_is_named():
    with pytest.raises(ConfigError, match="no port"):
        parse_address("host")


@pytest.mark.parametrize(
    ("address", "is_unspecified"),
    [
        (Address("", 1), True),
        (Address("h", 0), True),
        (Address("0.0.0.0", 1), True),
        (Address("::", 1), True),
        (Address("h", 1), False),
        (Address("127.0.0.1", 1), False),
    ],
)
def test_addresses_nobody_could_connect_to_are_known(address, is_unspecified):
    assert address.is_unspecified is is_unspecified
