"""A radix tree over token ids: who holds which prefix.

Holders are named by integers. Three kinds: sequences in the KV cache, blobs in host memory, and checkpoints (states at
one exact place). A holder covers every node from where it starts to where it ends, and ends on a node's edge. Edges are
`array('i')`, compared in slices, so that long prompts cost C speed and 4 bytes a token. One tree per isolation key.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence


def tokens_of(ids: Sequence[int]) -> array[int]:
    """Ids as the compact container that the tree compares."""
    return array("i", ids)


def common_length(left: array[int], left_start: int, right: array[int], right_start: int) -> int:
    """How many ids agree from the two starts on."""
    most = min(len(left) - left_start, len(right) - right_start)
    if left[left_start : left_start + most] == right[right_start : right_start + most]:
        return most
    low, high = 0, most  # left and right agree in `low` ids and differ within `high`
    while high - low > 1:
        middle = (low + high) // 2
        if left[left_start + low : left_start + middle] == right[right_start + low : right_start + middle]:
            low = middle
        else:
            high = middle
    return low


class Node:
    """An edge of the tree and who covers it."""

    __slots__ = ("blob_tip", "blobs", "checkpoint", "children", "end", "parent", "sequences", "tips", "tokens")

    def __init__(self, parent: Node | None, tokens: array[int], end: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.end = end
        """Depth of the edge's end: ids from the root to there."""
        self.children: dict[int, Node] = {}
        self.sequences: set[int] = set()
        self.blobs: set[int] = set()
        self.blob_tip: int | None = None
        """The blob that ends exactly here."""
        self.checkpoint: int | None = None
        """A state at exactly `end`."""
        self.tips = 0
        """Holders that end here, so that the node must not be joined with its child."""

    @property
    def start(self) -> int:
        """Depth where the edge begins."""
        return self.end - len(self.tokens)


class PrefixTree:
    """Radix tree of one isolation key."""

    def __init__(self) -> None:
        self.root = Node(None, array("i"), 0)

    @property
    def is_empty(self) -> bool:
        """Whether nobody holds anything."""
        return not self.root.children

    def match(self, tokens: array[int], limit: int) -> list[tuple[Node, int]]:
        """Nodes that agree with the first `limit` ids, outermost first, each with the depth agreed (≤ its end)."""
        path: list[tuple[Node, int]] = []
        node, depth = self.root, 0
        while depth < limit:
            child = node.children.get(tokens[depth])
            if child is None:
                break
            agreed = common_length(child.tokens, 0, tokens, depth)
            depth = min(depth + agreed, limit)
            path.append((child, depth))
            if depth < child.end:
                break
            node = child
        return path

    def place(self, tokens: array[int], end: int) -> Node:
        """The node that ends exactly at `end` on the path of `tokens`, made if need be.

        Then: put a holder on it at once with `cover_*` or `set_checkpoint`; a bare node is not kept for long.
        """
        node, depth = self.root, 0
        while depth < end:
            child = node.children.get(tokens[depth])
            if child is None:
                child = Node(node, tokens[depth:end], end)
                node.children[tokens[depth]] = child
                return child
            agreed = min(common_length(child.tokens, 0, tokens, depth), end - depth)
            node = child if agreed == len(child.tokens) else self._split(child, agreed)
            depth += agreed
        return node

    def add_sequence(self, holder: int, tip: Node) -> None:
        """Let a sequence cover everything down to `tip`."""
        tip.tips += 1
        for node in self._up(tip):
            node.sequences.add(holder)

    def remove_sequence(self, holder: int, tip: Node) -> None:
        """Take a sequence that ends at `tip` off the tree."""
        tip.tips -= 1
        for node in list(self._up(tip)):
            node.sequences.discard(holder)
        self._tidy(tip)

    def extend_sequence(self, holder: int, tip: Node, tokens: array[int], end: int) -> Node:
        """Move a sequence's end from `tip` down to `end` on the path of `tokens`; returns the new tip."""
        if end <= tip.end:
            return tip
        alone = tip.tips == 1 and len(tip.sequences) == 1 and not tip.children and tip.checkpoint is None
        if alone and not tip.blobs and tip.parent is not None:
            tip.tokens.extend(tokens[tip.end : end])
            tip.end = end
            return tip
        node = self.place(tokens, end)
        node.tips += 1
        tip.tips -= 1
        for covered in self._up(node):
            covered.sequences.add(holder)
        self._tidy(tip)
        return node

    def shorten_sequence(self, holder: int, tip: Node, tokens: array[int], end: int) -> Node:
        """Move a sequence's end from `tip` up to `end`; returns the new tip."""
        node = self.place(tokens, end)
        node.tips += 1
        tip.tips -= 1
        for left in list(self._up(tip)):
            if left is node:
                break
            left.sequences.discard(holder)
        self._tidy(tip)
        return node

    def add_blob(self, holder: int, tip: Node, start: int) -> None:
        """Let a blob cover (start, end of tip]; no other blob may end there."""
        assert tip.blob_tip is None
        tip.blob_tip = holder
        tip.tips += 1
        for node in self._up(tip):
            if node.end <= start:
                break
            node.blobs.add(holder)

    def remove_blob(self, holder: int, tip: Node) -> None:
        """Take a blob that ends at `tip` off the tree."""
        assert tip.blob_tip == holder
        tip.blob_tip = None
        tip.tips -= 1
        for node in list(self._up(tip)):
            node.blobs.discard(holder)
        self._tidy(tip)

    def set_checkpoint(self, holder: int, node: Node) -> None:
        """Put a state at a node's end; there must be none."""
        assert node.checkpoint is None
        node.checkpoint = holder
        node.tips += 1

    def clear_checkpoint(self, node: Node) -> None:
        """Take the state at a node's end away."""
        node.checkpoint = None
        node.tips -= 1
        self._tidy(node)

    def _up(self, node: Node) -> Iterator[Node]:
        """A node and its ancestors, without the root."""
        current: Node | None = node
        while current is not None and current.parent is not None:
            yield current
            current = current.parent

    def _split(self, node: Node, at: int) -> Node:
        """Cut an edge after `at` ids and return the upper part; `node` stays the lower one, with its tips."""
        parent = node.parent
        assert parent is not None
        upper = Node(parent, node.tokens[:at], node.start + at)
        upper.sequences, upper.blobs = set(node.sequences), set(node.blobs)
        parent.children[upper.tokens[0]] = upper
        node.tokens = node.tokens[at:]
        node.parent = upper
        upper.children[node.tokens[0]] = node
        return upper

    def _tidy(self, node: Node) -> None:
        """Remove what nobody holds from `node` upwards and join edges cut for nothing."""
        for current in list(self._up(node)):
            parent = current.parent
            if parent is None or current.tips:
                continue
            if not current.children:
                if not current.sequences and not current.blobs:
                    del parent.children[current.tokens[0]]
            elif len(current.children) == 1:
                (child,) = current.children.values()
                if child.sequences == current.sequences and child.blobs == current.blobs:
                    child.tokens = current.tokens + child.tokens
                    child.parent = parent
                    parent.children[child.tokens[0]] = child


class Forest:
    """A tree for each isolation key that holds anything."""

    def __init__(self) -> None:
        self.trees: dict[str, PrefixTree] = {}

    def tree(self, isolation: str) -> PrefixTree:
        """The tree of a key, made if need be."""
        return self.trees.setdefault(isolation, PrefixTree())

    def match(self, isolation: str, tokens: array[int], limit: int) -> list[tuple[Node, int]]:
        """`PrefixTree.match` in the tree of a key; nothing is made."""
        tree = self.trees.get(isolation)
        return tree.match(tokens, limit) if tree is not None else []

    def forget_if_empty(self, isolation: str) -> None:
        """Drop a tree that nobody is in."""
        tree = self.trees.get(isolation)
        if tree is not None and tree.is_empty:
            del self.trees[isolation]
