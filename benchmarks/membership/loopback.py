"""A loopback interface of one's own, whose byte counters belong to one cluster alone.

Both libraries are counted by the kernel in the same way: all UDP and TCP traffic of the members, headers included.
"""

from __future__ import annotations

import fcntl
import shutil
import socket
import struct
import subprocess
from pathlib import Path

UNSHARE = ("unshare", "--user", "--map-root-user", "--net")
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def isolation() -> tuple[str, ...]:
    """Return what to put before a command so that it gets a network of its own; empty where the system refuses."""
    if shutil.which(UNSHARE[0]) is None:
        return ()
    allowed = subprocess.run([*UNSHARE, "true"], capture_output=True, check=False, timeout=10).returncode == 0
    return UNSHARE if allowed else ()


def bring_up() -> None:
    """Switch on the loopback of a fresh network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def bytes_sent() -> int:
    """Return the bytes that this network's loopback has carried."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    raise RuntimeError("no loopback interface")
