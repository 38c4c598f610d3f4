"""Hypothesis strategies for addresses and fault schedules; needs the `hypothesis` package, which is not installed along.

Schedules are built fault by fault, so that Hypothesis shrinks a failing one as it shrinks any list.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hypothesis import strategies as st

from swimcluster.address import Address
from swimcluster.testing.faults import Crash, Cut, Fault, Hold, Partition, Pause, Schedule, SlowCpu, Suspend, Weather
from swimcluster.testing.network import MILLISECOND, SECOND, Burst, Trouble, Uniform


def addresses() -> st.SearchStrategy[Address]:
    """Addresses one could connect to: IPv4 and IPv6 literals and DNS names."""
    v4 = st.ip_addresses(v=4).map(str).filter(lambda text: text != "0.0.0.0")  # noqa: S104 - left out, not bound
    v6 = st.ip_addresses(v=6).map(str).filter(lambda text: text != "::")
    names = st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z]{1,8}){0,2}", fullmatch=True)
    return st.builds(Address, host=v4 | v6 | names, port=st.integers(1, 65535))


def troubles(names: Sequence[str]) -> st.SearchStrategy[Trouble]:
    """One thing that is wrong with the network, for everybody or for some."""
    some = st.none() | st.frozensets(st.sampled_from(list(names)), min_size=1)
    share = st.sampled_from((0.05, 0.2, 0.5, 0.9))
    kinds = [
        st.builds(Trouble, sources=some, destinations=some, loss=share),
        st.builds(Trouble, sources=some, destinations=some, burst=st.just(Burst(0.02, 0.1))),
        st.builds(Trouble, latency=st.just(Uniform(50 * MILLISECOND, 400 * MILLISECOND))),
        st.builds(Trouble, duplicate=share, reorder=share),
        st.builds(Trouble, corrupt=share),
        st.builds(Trouble, mtu=st.sampled_from((300, 576))),
        st.builds(Trouble, half_open=share),
    ]
    return st.one_of(kinds)


def faults(names: Sequence[str], *, length_s: float) -> st.SearchStrategy[Fault]:
    """One fault that begins and ends within `length_s`."""
    half = round(length_s * SECOND / 2)
    at, lasting = st.integers(0, half), st.integers(10 * MILLISECOND, half)
    member, group = st.sampled_from(list(names)), st.frozensets(st.sampled_from(list(names)), min_size=1)
    on = partial(st.builds, at_ns=at, for_ns=lasting)
    return st.one_of(
        on(
            Crash,
            member=member,
            keep_disk=st.booleans(),
            host_down=st.booleans(),
            new_address=st.none(),
            restarts=st.just(True),
        ),
        on(Pause, member=member),
        on(Suspend, member=member),
        on(Hold, member=member),
        on(SlowCpu, member=member, service_ns=st.sampled_from((MILLISECOND, 20 * MILLISECOND))),
        on(Cut, sources=group, destinations=group, exchanges=st.booleans()),
        on(Partition, members=group),
        on(Weather, trouble=troubles(names)),
    )


def schedules(names: Sequence[str], *, length_s: float, faults_max: int = 8) -> st.SearchStrategy[Schedule]:
    """Up to `faults_max` faults within `length_s` of virtual time."""
    return st.lists(faults(names, length_s=length_s), max_size=faults_max).map(tuple)
