"""What must hold inside a scheduler's cache: the trees, the sequences, the store and the fake cache tell one story."""

from __future__ import annotations

from saiserve.engines.llamacpp.prefix_tree import Node, PrefixTree
from tests.fakes.engine_loop import Loop


def check_everything(loop: Loop) -> None:
    """The trees, the sequences, the store and the cache tell one story."""
    cache = loop.scheduler._cache
    sequences = loop.kv.sequences_max
    twins = {held.sequence + sequences for held in cache.held.values() if held.pinned} if cache.pins else set()
    ready = {held.sequence for held in cache.held.values() if held.ready}
    assert loop.kv.sequences_used == ready | twins
    assert set(cache.held) | set(cache._free) == set(range(sequences - 1))
    assert not set(cache.held) & set(cache._free)
    assert {held.sequence for held in cache.held.values() if not held.is_idle} == set(loop.scheduler._running)
    blobs = set()
    checkpoints = set()
    for isolation, tree in cache._forest.trees.items():
        assert not tree.is_empty
        for holder in check_tree(tree):
            blob = cache.host.store.blobs[holder]
            assert blob.isolation == isolation
            (checkpoints if blob.is_checkpoint else blobs).add(holder)
    assert blobs | checkpoints == set(cache.host.store.blobs)
    assert (
        cache.host.store.bytes_used
        == sum(len(blob.data) for blob in cache.host.store.blobs.values())
        <= cache.host.store.bytes_max
    )
    for held in cache.held.values():
        ids = ids_to(held.tip)
        assert ids == list(held.tokens[: held.planned]), "the tree says other ids than the sequence"
        assert loop.kv.context(held.sequence) == tuple(held.tokens[: held.ready])
        assert held.sequence in held.tip.sequences


def ids_to(node: Node | None) -> list[int]:
    ids: list[int] = []
    while node is not None:
        ids = [*node.tokens, *ids]
        node = node.parent
    return ids


def check_tree(tree: PrefixTree) -> set[int]:
    """Check the shape; returns the blobs and checkpoints in it."""
    found: set[int] = set()
    todo = [tree.root]
    while todo:
        node = todo.pop()
        for first, child in node.children.items():
            assert child.parent is node
            assert child.tokens[0] == first
            assert child.start == node.end
            if node.parent is not None:
                assert child.sequences <= node.sequences
            found |= child.blobs
            if child.checkpoint is not None:
                found.add(child.checkpoint)
            assert child.sequences or child.blobs or child.checkpoint is not None or child.children
            todo.append(child)
    return found
