"""The simulated server's page allocator: free pages of a pool, handed out and taken back whole."""

from __future__ import annotations

import numpy as np


class FreePages:
    """Pages nobody owns, in the order in which they will be handed out. Page 0 is padding and never among them."""

    def __init__(self, rng: np.random.Generator, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_pages = num_pages
        self._pages: list[int] = (rng.permutation(num_pages) + 1).tolist()

    def __len__(self) -> int:
        return len(self._pages)

    @property
    def num_slots(self) -> int:
        """Slots of the pool's buffers, the padding page included."""
        return (self.num_pages + 1) * self.page_size

    def take(self, count: int) -> list[int]:
        """Hand out ``count`` pages."""
        taken, self._pages = self._pages[:count], self._pages[count:]
        if len(taken) < count:
            raise RuntimeError(f"the simulated pool is too small: {count} pages asked, {len(taken)} free")
        return taken

    def give(self, pages: list[int]) -> None:
        """Take pages back; they are handed out again after all others."""
        self._pages += pages

    def slots(self) -> list[int]:
        """Slots of the free pages, in their order."""
        return [slot for page in self._pages for slot in slots_of(page, self.page_size)]


def slots_of(page: int, page_size: int) -> range:
    """Slots of a page."""
    return range(page * page_size, (page + 1) * page_size)
