"""The simulated server's prefix cache: a tree with one node for each page of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

Key = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Node:
    """A cached page: its tokens (``key``) and its ``page`` of slots; its holders, and its last use."""

    key: Key
    page: int
    parent: Node | None
    depth: int
    locks: int = 0
    used: int = 0
    children: dict[Key, Node] = field(default_factory=dict)


class PrefixCache:
    """Pages by the tokens they hold and all tokens before them, apart for each extra key (adapter, salt).

    ``offset``: 1 where records hold the next position's token; then a page's key reaches one token further.
    """

    def __init__(self, page_size: int, offset: int) -> None:
        self.page_size = page_size
        self.offset = offset
        self._roots: dict[str | None, Node] = {}

    def root(self, extra_key: str | None) -> Node:
        """The node above the first page."""
        return self._roots.setdefault(extra_key, Node(key=(), page=0, parent=None, depth=-1))

    def key(self, tokens: list[int], number: int) -> Key:
        """What page ``number`` of ``tokens`` is found by."""
        first = number * self.page_size
        return tuple(tokens[first : first + self.page_size + self.offset])

    def match(self, tokens: list[int], pages: int, extra_key: str | None) -> list[Node]:
        """The longest cached path of at most ``pages`` pages of ``tokens``."""
        node, path = self.root(extra_key), []
        for number in range(pages):
            child = node.children.get(self.key(tokens, number))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def add(self, parent: Node, key: Key, page: int, used: int) -> Node:
        """Put a page below ``parent``."""
        node = Node(key=key, page=page, parent=parent, depth=parent.depth + 1, used=used)
        parent.children[key] = node
        return node

    def remove_oldest(self) -> Node | None:
        """Take out the least recently used page that nobody holds and no other page follows; None if there is none."""
        leaves = [node for node in self.nodes() if not node.children and not node.locks]
        if not leaves:
            return None
        oldest = min(leaves, key=lambda node: node.used)
        assert oldest.parent is not None
        del oldest.parent.children[oldest.key]
        return oldest

    def nodes(self) -> Iterator[Node]:
        """All pages, each after the one before it."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()
