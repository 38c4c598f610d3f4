"""Two members driven by hand: no socket, no event loop, no real second passes. Run it: it needs no arguments."""

import random

from swimcluster import Address, Config, Datagram, MemberDied, MemberJoined, MemberSuspected, PendingReply, Swim

SECOND = 1_000_000_000
A, B = Address("10.0.0.1", 7946), Address("10.0.0.2", 7946)


def make(name: str, address: Address, *seeds: Address) -> Swim:
    config = Config.lan(name=name, advertise=address, seeds=seeds, keys=[b"sixteen bytes or more"])
    return Swim(config, now=0, epoch=1, instance=name.encode() * 8, rng=random.Random(name))


def carry(now: int, machines: dict[Address, Swim]) -> None:
    """Carry everything the machines want to send, until nothing is left; what goes to nobody is lost."""
    while batch := [(source, item) for source, machine in machines.items() for item in machine.transmits()]:
        for source, item in batch:
            other = machines.get(item.destination)
            if isinstance(item, Datagram):
                if other is not None:
                    other.receive_datagram(now, source, item.data)
                continue
            reply = None if other is None else other.exchange_received(now, source, item.data)
            if reply is None or isinstance(reply, PendingReply):
                machines[source].exchange_failed(now, item.id)
            else:
                machines[source].exchange_replied(now, item.id, reply)


machines = {A: make("a", A), B: make("b", B, A)}
now = 0
while now < 40 * SECOND:
    for machine in machines.values():
        machine.advance(now)
    carry(now, machines)
    for machine in list(machines.values()):
        for event in machine.events():
            if isinstance(event, MemberJoined | MemberSuspected | MemberDied):
                print(f"{now / SECOND:6.2f} s  {machine.local.name}: {type(event).__name__} {event.member.name}")
    if now >= 10 * SECOND and B in machines:
        del machines[B]
        print(f"{now / SECOND:6.2f} s  b is unplugged")
    now = min(deadline for machine in machines.values() if (deadline := machine.next_deadline()) is not None)
