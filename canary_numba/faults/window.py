"""The simulated server's sliding-window pool: pages mapped from full pages, released when no window needs them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from canary_numba.faults.pages import FreePages, slots_of


class WindowPool:
    """Window pages by full page.

    Attributes
    ----------
    free : FreePages
        Window pages nobody uses.
    mapping : numpy.ndarray
        int64 ``[full slots + 1]``: window slot of each full slot, 0 = released; the last entry is for slot -1.
    """

    def __init__(self, free: FreePages, num_full_slots: int) -> None:
        self.free = free
        self.mapping = np.zeros(num_full_slots + 1, dtype=np.int64)
        self.mapping[-1] = -1

    def has(self, page: int) -> bool:
        """Tell whether a full page has a window page."""
        return bool(self.mapping[page * self.free.page_size])

    def attach(self, pages: list[int]) -> None:
        """Give each full page a window page."""
        for page, window_page in zip(pages, self.free.take(len(pages)), strict=True):
            self._map(page, window_page)

    def release(self, pages: Iterable[int]) -> None:
        """Take back the window pages of full pages, as far as they have any."""
        for page in pages:
            if self.has(page):
                self.free.give([self._window_page(page)])
                self.mapping[list(slots_of(page, self.free.page_size))] = 0

    def move(self, source: int, target: int) -> None:
        """Let full page ``target`` have the window page of ``source``, if it has none itself."""
        if self.has(source) and not self.has(target):
            self._map(target, self._window_page(source))
            self.mapping[list(slots_of(source, self.free.page_size))] = 0

    def _window_page(self, page: int) -> int:
        return int(self.mapping[page * self.free.page_size]) // self.free.page_size

    def _map(self, page: int, window_page: int) -> None:
        size = self.free.page_size
        self.mapping[list(slots_of(page, size))] = list(slots_of(window_page, size))
