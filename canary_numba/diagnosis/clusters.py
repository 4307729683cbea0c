"""Neighbours in slot number: what a kernel that writes to the wrong place leaves behind."""

from __future__ import annotations

import numpy as np

from canary_numba.diagnosis.chains import Int64s
from canary_numba.diagnosis.view import GroupView

FEWEST = 3
"""Slots that make a range: two neighbours may be chance."""


def neighbours(slots: Int64s, gap: int = 1) -> list[Int64s]:
    """Cut ascending slots where more than ``gap`` separates them."""
    return np.split(slots, np.flatnonzero(np.diff(slots) > gap) + 1) if slots.shape[0] else []


def neighbours_in_use(group: GroupView, slots: Int64s) -> list[Int64s]:
    """Cut ascending slots where a slot in use lies between two of them."""
    if not slots.shape[0]:
        return []
    rank = np.cumsum(group.owned)[slots]
    return np.split(slots, np.flatnonzero(np.diff(rank) > 1) + 1)


def in_request_order(group: GroupView, slots: Int64s) -> bool:
    """Tell whether one request owns all slots at consecutive positions in slot order.

    Then their being neighbours says nothing: the allocator hands out neighbours.
    """
    for cell in group.cells_of(int(slots[0])).tolist():
        end = cell + slots.shape[0]
        one_request = end <= int(group.starts[group.request[cell] + 1])
        if one_request and np.array_equal(group.slot[cell:end], slots):
            return True
    return False


def same_place_in_page(slots: Int64s, page_size: int) -> int | None:
    """The offset in its page that all slots have, if they lie in three pages or more and a page has several slots."""
    if page_size <= 1 or np.unique(slots // page_size).shape[0] < FEWEST:
        return None
    offsets = np.unique(slots % page_size)
    return int(offsets[0]) if offsets.shape[0] == 1 else None
