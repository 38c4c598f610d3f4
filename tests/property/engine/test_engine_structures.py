"""The ledger and the tree against models too simple to be wrong."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from saiserve.engines.llamacpp.cells import CellLedger
from saiserve.engines.llamacpp.prefix_tree import Node, PrefixTree, common_length, tokens_of
from tests.fakes.engine_checks import check_tree, ids_to

IDS = st.integers(0, 5)


class Ledger(RuleBasedStateMachine):
    """A sequence is a list of cell names; sharing is having the same names."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = CellLedger()
        self.cells: dict[int, list[int]] = {}
        self.idle: set[int] = set()
        self.names = 0

    @rule(sequence=IDS, count=st.integers(1, 9))
    def extend(self, sequence: int, count: int) -> None:
        self.ledger.extend(sequence, count)
        self.cells.setdefault(sequence, []).extend(range(self.names, self.names + count))
        self.names += count

    @rule(source=IDS, destination=IDS, share=st.floats(0, 1))
    def fork(self, source: int, destination: int, share: float) -> None:
        if self.cells.get(source) and not self.cells.get(destination):
            cut = max(1, int(share * len(self.cells[source])))
            self.ledger.fork(source, destination, cut)
            self.cells[destination] = self.cells[source][:cut]

    @rule(sequence=IDS, share=st.floats(0, 1))
    def truncate(self, sequence: int, share: float) -> None:
        cut = int(share * len(self.cells.get(sequence, [])))
        self.ledger.truncate(sequence, cut)
        self.cells[sequence] = self.cells.get(sequence, [])[:cut]

    @rule(sequence=IDS)
    def drop(self, sequence: int) -> None:
        self.ledger.drop(sequence)
        self.cells.pop(sequence, None)
        self.idle.discard(sequence)

    @rule(sequence=IDS, idle=st.booleans())
    def set_idle(self, sequence: int, idle: bool) -> None:
        self.ledger.set_idle(sequence, idle)
        (self.idle.add if idle else self.idle.discard)(sequence)

    @invariant()
    def counts_agree(self) -> None:
        everything = {cell for cells in self.cells.values() for cell in cells}
        active = {cell for sequence, cells in self.cells.items() if sequence not in self.idle for cell in cells}
        assert self.ledger.used == len(everything)
        assert self.ledger.idle == len(everything - active)
        for sequence, cells in self.cells.items():
            others = {cell for other, held in self.cells.items() if other != sequence for cell in held}
            assert self.ledger.length(sequence) == len(cells)
            assert self.ledger.unique(sequence) == len(set(cells) - others)


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=40)


@given(st.lists(st.integers(0, 2), max_size=300), st.lists(st.integers(0, 2), max_size=300), st.integers(0, 300))
def test_common_length_counts_ids_that_agree_from_the_starts(left: list[int], right: list[int], shared: int) -> None:
    left = right[:shared] + left
    expected = 0
    while expected < min(len(left), len(right)) and left[expected] == right[expected]:
        expected += 1
    assert common_length(array("i", [9, *left]), 1, array("i", [9, 9, *right]), 2) == expected


PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


class Tree(RuleBasedStateMachine):
    """Holders as plain lists of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree()
        self.sequences: dict[int, tuple[list[int], Node]] = {}
        self.blobs: dict[int, tuple[list[int], int, Node]] = {}
        self.checkpoints: dict[int, tuple[list[int], Node]] = {}
        self.next_id = 0

    @rule(ids=PROMPTS)
    def add_sequence(self, ids: list[int]) -> None:
        tip = self.tree.place(tokens_of(ids), len(ids))
        self.tree.add_sequence(self.next_id, tip)
        self.sequences[self.next_id] = (ids, tip)
        self.next_id += 1

    @rule(data=st.data(), more=PROMPTS)
    def extend_or_shorten(self, data: st.DataObject, more: list[int]) -> None:
        if not self.sequences:
            return
        holder = data.draw(st.sampled_from(sorted(self.sequences)))
        ids, tip = self.sequences[holder]
        if data.draw(st.booleans()):
            ids = [*ids, *more]
            tip = self.tree.extend_sequence(holder, tip, tokens_of(ids), len(ids))
        else:
            end = data.draw(st.integers(1, len(ids)))
            tip = self.tree.shorten_sequence(holder, tip, tokens_of(ids), end)
            ids = ids[:end]
        self.sequences[holder] = (ids, tip)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from([self.sequences, self.blobs, self.checkpoints]))
        if kind:
            holder = data.draw(st.sampled_from(sorted(kind)))
            node = kind.pop(holder)[-1]
            if kind is self.sequences:
                self.tree.remove_sequence(holder, node)
            elif kind is self.blobs:
                self.tree.remove_blob(holder, node)
            else:
                self.tree.clear_checkpoint(node)

    @rule(ids=PROMPTS, start=st.integers(0, 11))
    def add_blob(self, ids: list[int], start: int) -> None:
        tip = self.tree.place(tokens_of(ids), len(ids))
        if tip.blob_tip is not None or start >= len(ids):
            tip = self.tree.place(tokens_of(ids), len(ids))
            self.tree.add_sequence(-1, tip)  # no bare node is to stay
            self.tree.remove_sequence(-1, tip)
            return
        if start:
            self.tree.place(tokens_of(ids), start)  # a blob starts where another holder's node ends
        self.tree.add_blob(self.next_id, tip, start)
        self.blobs[self.next_id] = (ids, start, tip)
        self.next_id += 1

    @rule(ids=PROMPTS)
    def set_checkpoint(self, ids: list[int]) -> None:
        node = self.tree.place(tokens_of(ids), len(ids))
        if node.checkpoint is None:
            self.tree.set_checkpoint(self.next_id, node)
            self.checkpoints[self.next_id] = (ids, node)
            self.next_id += 1

    @rule(ids=PROMPTS, limit=st.integers(0, 12))
    def match_finds_what_each_holder_shares(self, ids: list[int], limit: int) -> None:
        tokens = tokens_of(ids)
        limit = min(limit, len(ids))
        path = self.tree.match(tokens, limit)
        for holder, (held, _) in self.sequences.items():
            shared = min(common_length(tokens_of(held), 0, tokens, 0), limit)
            assert max((depth for node, depth in path if holder in node.sequences), default=0) == shared
        for place, node in self.checkpoints.values():
            found = any(each is node and depth == node.end for each, depth in path)
            assert found == (len(place) <= limit and place == ids[: len(place)])

    @invariant()
    def holders_end_where_they_should(self) -> None:
        check_tree(self.tree)
        for ids, tip in [*self.sequences.values(), *self.checkpoints.values()]:
            assert ids_to(tip) == ids
        for holder, (ids, start, tip) in self.blobs.items():
            assert ids_to(tip) == ids
            node: Node | None = tip
            while node is not None and node.parent is not None:
                assert (holder in node.blobs) == (node.end > start)
                node = node.parent
        if not (self.sequences or self.blobs or self.checkpoints):
            assert self.tree.is_empty


TestTree = Tree.TestCase
TestTree.settings = settings(max_examples=60)
