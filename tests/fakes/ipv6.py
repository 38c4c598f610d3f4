"""Tests that need an IPv6 loopback: many containers have none."""

from __future__ import annotations

import socket

import pytest


def has_ipv6() -> bool:
    """Whether this machine has an IPv6 loopback."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback here")
