"""What the three rules come to on a simulated fleet whose nodes know each other's load late."""

from __future__ import annotations

import itertools

import pytest

from tests.unit.routing.simulated_fleet import Fleet, chat, converse


@pytest.mark.parametrize("think_s", [0.0, 0.01, 0.6, 2.5])
@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_a_conversation_entered_through_alternating_nodes_stays_at_one_node(
    nodes: int, lanes: int, think_s: float
) -> None:
    for seed in range(3):
        fleet = Fleet(nodes, lanes=lanes, seed=seed)
        for number in range(3):
            # A single lane that was busy a second ago looks full from afar, and full nodes are passed over.
            fleet.run(2.0 if lanes == 1 else 0.0)
            turns = converse(fleet, f"c{seed}.{number}", itertools.cycle(fleet.names), 4, think_s=think_s)
            assert len({turn.node for turn in turns}) == 1, (seed, number, [t.node for t in turns])
            assert all(turn.cached_tokens > 0 for turn in turns[1:])


def test_a_long_system_text_does_not_break_that() -> None:
    for seed in range(3):
        fleet = Fleet(3, lanes=2, seed=seed)
        system = "You are a careful assistant. " * 100
        for number in range(6):
            turns = converse(fleet, f"c{number}", itertools.cycle(fleet.names), 4, think_s=0.0, system=system)
            assert len({turn.node for turn in turns}) == 1, (seed, number, [t.node for t in turns])


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("nodes", [2, 3])
def test_thirty_distinct_requests_at_once_to_one_node_spread_over_all(nodes: int, lanes: int) -> None:
    for seed in range(3):
        fleet = Fleet(nodes, lanes=lanes, seed=seed)
        records = []
        for number in range(30):
            records.append(fleet.ask("n0", chat(f"r{number}", f"a question of its own, number {number} / {seed}")))
            fleet.run(0.003)
        counts = fleet.counts(records)
        assert max(counts.values()) <= 2 * 30 / nodes, (seed, counts)
        assert min(counts.values()) >= 30 / nodes / 2, (seed, counts)


@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_thirty_distinct_requests_through_all_nodes_spread_over_all(lanes: int) -> None:
    for seed in range(3):
        fleet = Fleet(3, lanes=lanes, seed=seed)
        records = []
        for number in range(30):
            records.append(fleet.ask(f"n{number % 3}", chat(f"r{number}", f"question number {number} / {seed}")))
            fleet.run(0.003)
        counts = fleet.counts(records)
        assert max(counts.values()) <= 2 * 30 / 3, (seed, counts)


@pytest.mark.parametrize("through_all", [False, True])
@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("in_system", [False, True])
def test_one_hot_prefix_spreads_once_a_node_is_full_and_a_quiet_follow_up_finds_it(
    in_system: bool, lanes: int, through_all: bool
) -> None:
    head = "The same thousand tokens of context. " * 110
    for seed in range(3):
        fleet = Fleet(3, lanes=lanes, seed=seed)

        def request(identity: str) -> object:
            question = f"what about {identity}?"
            return chat(identity, question, system=head) if in_system else chat(identity, head + question)

        records = []
        for number in range(30):
            entry = f"n{number % 3}" if through_all else "n0"
            records.append(fleet.ask(entry, request(f"r{number}")))  # type: ignore[arg-type]
            fleet.run(0.003)
        counts = fleet.counts(records)
        assert max(counts.values()) <= 2 * 30 / 3, (seed, counts)
        fleet.finish(*records)
        fleet.run(3.0)
        for number in range(5):
            record = fleet.ask(f"n{number % 3}", request(f"q{number}"))  # type: ignore[arg-type]
            fleet.finish(record)
            assert record.cached_tokens > 500, (seed, record)


def test_many_conversations_at_once_keep_most_of_their_history_and_share_the_work() -> None:
    fleet = Fleet(3, lanes=4, seed=5)
    said: dict[int, list[str]] = {number: [] for number in range(9)}
    records = []
    for turn in range(4):
        batch = []
        for number, texts in said.items():
            texts.append(f"question {turn} of conversation {number}, with some words around it to give it a length")
            batch.append(fleet.ask(f"n{(number + turn) % 3}", chat(f"c{number}.{turn}", *texts)))
            texts.append("word " * 40)
            fleet.run(0.01)
        fleet.finish(*batch)
        records.append(batch)
    later = [record for batch in records[1:] for record in batch]
    hits = sum(record.cached_tokens > 0 for record in later) / len(later)
    assert hits >= 0.85, hits
    for batch in records:
        assert max(fleet.counts(batch).values()) <= 6


def test_a_slow_node_gets_fewer_requests() -> None:
    fleet = Fleet(3, lanes=2, seed=3)
    fleet.engines["n2"].prefill_rate /= 8
    fleet.engines["n2"].decode_rate /= 8
    records = []
    for number in range(60):
        records.append(fleet.ask(f"n{number % 3}", chat(f"r{number}", f"question number {number}")))
        fleet.run(0.25)
    counts = fleet.counts(records)
    assert counts["n2"] < min(counts["n0"], counts["n1"]), counts
