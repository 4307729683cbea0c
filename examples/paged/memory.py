"""Who owns which page: a free list, and a cache of the pages of prompts seen before."""

from __future__ import annotations

from collections import Counter


class PageAllocator:
    """A free list of pages; page 0 takes what padding writes and is never handed out."""

    def __init__(self, num_pages: int) -> None:
        self.free_pages = list(range(1, num_pages))

    def alloc(self) -> int:
        """Hand out a page."""
        return self.free_pages.pop(0)

    def free(self, page: int) -> None:
        """Take a page back."""
        self.free_pages.append(page)


class PrefixCache:
    """Full pages of finished prompts, by the tokens from the start up to their end."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.pages: dict[tuple[int, ...], int] = {}
        self.users: Counter[int] = Counter()

    def key(self, tokens: list[int], end: int) -> tuple[int, ...]:
        """Name the page that ends before position ``end``."""
        return tuple(tokens[:end])

    def match(self, tokens: list[int]) -> list[int]:
        """Return the cached pages that ``tokens`` starts with, and count a user for each."""
        found: list[int] = []
        # The last token is always computed: its logits are needed.
        while (end := (len(found) + 1) * self.page_size) < len(tokens):
            page = self.pages.get(self.key(tokens, end))
            if page is None:
                break
            found.append(page)
        self.users.update(found)
        return found

    def insert(self, tokens: list[int], pages: list[int]) -> list[int]:
        """Keep the full pages of a finished request; return those that are not needed, so that they can be freed."""
        spare = []
        for number, page in enumerate(pages):
            end = (number + 1) * self.page_size
            if end > len(tokens) or self.pages.setdefault(self.key(tokens, end), page) != page:
                spare.append(page)
        return spare

    def evict(self) -> int | None:
        """Give up the longest prefix that nobody uses; return its page."""
        for key in sorted(self.pages, key=len, reverse=True):
            if not self.users[self.pages[key]]:
                return self.pages.pop(key)
        return None

    def paths(self) -> list[list[int]]:
        """Return the slots of every cached prefix, from position 0 on."""
        paths = []
        for key in self.pages:
            ends = range(self.page_size, len(key) + 1, self.page_size)
            pages = [self.pages[key[:end]] for end in ends if key[:end] in self.pages]
            if len(pages) == len(ends):
                paths.append([page * self.page_size + i for page in pages for i in range(self.page_size)])
        return paths
