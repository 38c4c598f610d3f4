"""Hosts of their own on one machine: network namespaces joined by a router in this process.

Each namespace has one TUN device. The router reads whole IP packets from each and writes them to the device of
their destination, unless a rule loses them. So the kernels' real UDP and TCP run over a network that can lose,
delay and cut, by direction, without netem.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import random
import struct
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

TUN = Path("/dev/net/tun")
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
PACKET_BYTES_MAX = 65_536
DEVICE = "swim0"


def why_not() -> str:
    """Return why this machine cannot do it; empty when it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not TUN.exists():
        return "there is no TUN device"
    try:
        probe = f"swimprobe{os.getpid()}"
        ip("netns", "add", probe)
        ip("netns", "del", probe)
    except (OSError, subprocess.CalledProcessError):
        return "network namespaces cannot be made here"
    return ""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=10)


class Router:
    """The wires between the hosts; hosts are numbered from 0."""

    def __init__(self, devices: list[int], seed: int) -> None:
        self._devices = devices
        self._rng = random.Random(seed)
        self.loss = 0.0
        """Share of packets lost, 0 to 1."""
        self.delays_s: dict[tuple[int, int], float] = {}
        """Directions (from, to) in which packets take so long."""
        self.cuts: set[tuple[int, int]] = set()
        """Directions (from, to) in which everything is lost."""
        self.carried = self.delayed = self.lost = 0

    def heal(self) -> None:
        """Lose and delay nothing any more."""
        self.cuts.clear()
        self.delays_s.clear()
        self.loss = 0.0

    def part(self, one: set[int], other: set[int]) -> None:
        """Cut everything between two groups, both ways."""
        self.cuts |= {(a, b) for a in one for b in other} | {(b, a) for a in one for b in other}

    async def carry(self, source: int, nursery: trio.Nursery) -> None:
        """Move the packets that one host sends."""
        device = self._devices[source]
        while True:
            await trio.lowlevel.wait_readable(device)
            packet = os.read(device, PACKET_BYTES_MAX)
            if packet[0] >> 4 != 4:
                continue  # IPv6 router solicitations and the like
            target = packet[19] - 1
            if (
                not 0 <= target < len(self._devices)
                or (source, target) in self.cuts
                or (self.loss and self._rng.random() < self.loss)
            ):
                self.lost += 1
            elif delay_s := self.delays_s.get((source, target), 0.0):
                self.delayed += 1
                nursery.start_soon(self._deliver_later, target, packet, delay_s)
            else:
                self._deliver(target, packet)

    def _deliver(self, target: int, packet: bytes) -> None:
        try:
            os.write(self._devices[target], packet)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.lost += 1  # its link is down
        else:
            self.carried += 1

    async def _deliver_later(self, target: int, packet: bytes, delay_s: float) -> None:
        await trio.sleep(delay_s)
        self._deliver(target, packet)


def host(number: int) -> str:
    """Return the address of a host."""
    return f"10.88.0.{number + 1}"


def set_link(number: int, state: str) -> None:
    """Take a host's only link `down` or `up`; while it is down the kernel refuses to send: ENETUNREACH."""
    ip("-n", namespace(number), "link", "set", DEVICE, state)


def refuse(number: int, kind: str, target: int) -> None:
    """Let a host's kernel refuse to send to another: `blackhole` EINVAL, `unreachable` EHOSTUNREACH, `prohibit` EACCES."""
    ip("-n", namespace(number), "route", "add", kind, f"{host(target)}/32")


def allow(number: int, kind: str, target: int) -> None:
    """Take back `refuse`."""
    ip("-n", namespace(number), "route", "del", kind, f"{host(target)}/32")


def namespace(number: int) -> str:
    """Return the name of a host's namespace; it carries this process's number, so that runs do not meet."""
    return f"swim{os.getpid()}n{number}"


@asynccontextmanager
async def network(hosts: int, *, seed: int = 1) -> AsyncIterator[Router]:
    """Make namespaces 0 to hosts − 1 and carry packets between them until the context ends."""
    devices: list[int] = []
    try:
        for number in range(hosts):
            name = namespace(number)
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "tuntap", "add", "dev", DEVICE, "mode", "tun")
            ip("-n", name, "addr", "add", f"{host(number)}/24", "dev", DEVICE)
            ip("-n", name, "link", "set", DEVICE, "up", "mtu", "1500")
            devices.append(open_device(name))
        router = Router(devices, seed)
        async with trio.open_nursery() as nursery:
            for number in range(hosts):
                nursery.start_soon(router.carry, number, nursery)
            yield router
            nursery.cancel_scope.cancel()
    finally:
        for device in devices:
            os.close(device)
        for number in range(hosts):
            subprocess.run(["ip", "netns", "del", namespace(number)], check=False, capture_output=True, timeout=10)


def open_device(name: str) -> int:
    """Open the TUN device inside a namespace; a thread of its own enters it, as that is per thread."""
    opened: list[int] = []
    faults: list[OSError] = []

    def enter_and_open() -> None:
        try:
            with open(f"/run/netns/{name}", "rb") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
            opened.append(device)
        except OSError as error:
            faults.append(error)

    thread = threading.Thread(target=enter_and_open)
    thread.start()
    thread.join()
    if faults:
        raise faults[0]
    return opened[0]
