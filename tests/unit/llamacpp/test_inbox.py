"""How long messages hold up a step, on virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from saiserve.engines.llamacpp.inbox import BURST_NS, SHARE, WAITING_MAX, Inbox, Message
from saiserve.engines.llamacpp.protocol import Configure
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.messages import Cancel, Count, Embed, Generate, Prompt, Sampling

MS = 1_000_000


@dataclass
class Engine:
    """A loop on a clock of its own: every message and every step takes a known time."""

    message_ns: int = 35 * MS
    step_ns: int = 10 * MS
    has_work: bool = True
    now: int = 0
    inbox: Inbox = field(default_factory=Inbox)
    handled: list[str] = field(default_factory=list)
    holds: list[int] = field(default_factory=list)
    """Time for messages before each step."""

    def handle(self, message: Message, now: int) -> None:
        assert now == self.now
        self.handled.append(message.id)
        if not isinstance(message, Cancel):
            self.now += self.message_ns
            self.has_work |= isinstance(message, Generate)

    def step(self) -> None:
        began = self.now
        self.inbox.hand_over(self, lambda: self.now)
        self.holds.append(self.now - began)
        self.now += self.step_ns


def count(name: object) -> Count:
    return Count(str(name), "m", Prompt(text="x"))


def generate(name: str) -> Generate:
    return Generate(name, "m", Prompt(text="x"), Sampling(seed=1))


def test_thirty_counts_at_once_take_their_share_and_no_more() -> None:
    engine = Engine()
    engine.inbox.add([count(n) for n in range(30)])
    while engine.inbox:
        engine.step()
    assert engine.handled == [str(n) for n in range(30)]
    assert max(engine.holds) <= engine.message_ns, "one at most before a step"
    work = 30 * engine.message_ns
    assert work <= SHARE * engine.now + BURST_NS + engine.message_ns
    assert engine.now <= 1.2 * work / SHARE


def test_without_work_everything_is_handled_at_once() -> None:
    engine = Engine(has_work=False)
    engine.inbox.add([count(n) for n in range(30)])
    engine.step()
    assert len(engine.handled) == 30


def test_a_request_among_counts_is_first_and_then_they_wait_for_its_steps() -> None:
    engine = Engine(has_work=False)
    engine.inbox.add([*(count(n) for n in range(5)), generate("g"), Embed("e", "m", ("x",))])
    engine.step()
    assert engine.handled == ["g"]
    engine.inbox.add([generate("h")])
    while engine.inbox:
        engine.step()
    assert engine.handled == ["g", "e", "h", *map(str, range(5))]


def test_short_messages_are_taken_many_at_a_time() -> None:
    engine = Engine(message_ns=MS)
    engine.inbox.add([generate(f"g{n}") for n in range(15)])
    engine.step()
    assert len(engine.handled) == 15


def test_a_cancel_never_waits_and_takes_its_request_back() -> None:
    engine = Engine()
    engine.inbox.add([count(0), count(1), count(2), generate("g")])
    engine.step()
    assert engine.handled == ["g"]
    engine.inbox.add([Cancel("1"), Cancel("g")])
    engine.step()
    assert engine.handled == ["g", "1", "g"]
    while engine.inbox:
        engine.step()
    assert engine.handled == ["g", "1", "g", "0", "2"]


def test_beyond_what_is_kept_the_streams_wait() -> None:
    engine = Engine(message_ns=100 * MS)
    engine.inbox.add([count(n) for n in range(WAITING_MAX + 20)])
    engine.step()
    assert len(engine.inbox) <= WAITING_MAX


def test_other_messages_are_not_the_workers() -> None:
    engine = Engine()
    engine.inbox.add([Configure(EngineSettings(model_path="m", model_id="m"))])
    engine.step()
    assert engine.handled == []


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["count", "generate"])), max_size=60),
    message_ms=st.integers(0, 60),
    step_ms=st.integers(1, 60),
)
def test_each_is_handled_once_in_order_and_no_step_is_held_up_longer_than_said(
    arrivals: list[tuple[int, str]], message_ms: int, step_ms: int
) -> None:
    engine = Engine(message_ns=message_ms * MS, step_ns=step_ms * MS)
    given_at: dict[int, list[Message]] = {}
    for number, (step, kind) in enumerate(arrivals):
        message = count(f"c{number}") if kind == "count" else generate(f"g{number}")
        given_at.setdefault(step, []).append(message)
    order: dict[str, list[str]] = {"c": [], "g": []}
    for step in range(20_000):
        for message in given_at.pop(step, []):
            order[message.id[0]].append(message.id)
            engine.inbox.add([message])
        engine.step()
        if not given_at and not engine.inbox:
            break
    for kind, ids in order.items():
        assert [one for one in engine.handled if one[0] == kind] == ids
    assert all(hold < BURST_NS + engine.message_ns for hold in engine.holds) or message_ms == 0
    assert sum(engine.holds) <= SHARE * engine.now + BURST_NS + engine.message_ns
