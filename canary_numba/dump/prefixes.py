"""Which requests share their leading slots, read off the table. Whether they may is judged elsewhere."""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from canary_numba.dump.model import Requests
from canary_numba.layout import REQ_POOL_IDX_PADDING

_FIRST_LOOK = 64
"""Slots compared first: most pairs of rows part early, and rows may be a million slots long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Requests whose tables begin with the same ``slots`` slots."""

    slots: int
    requests: tuple[str, ...]


def _rows(requests: Requests) -> list[np.ndarray]:
    """The cached part of each request's table row, int32 ``[n]``; empty where there is no such row."""
    table = requests.req_to_token.numpy()
    rows = []
    for row, length in zip(requests.req_pool_indices.tolist(), requests.prefix_lens.tolist(), strict=True):
        there = row != REQ_POOL_IDX_PADDING and 0 <= row < table.shape[0]
        rows.append(table[row, :length] if there else table[:0].reshape(-1))
    return rows


def common_length(left: np.ndarray, right: np.ndarray) -> int:
    """Leading elements that two arrays share."""
    end: int = min(left.shape[0], right.shape[0])
    # Two requests may be given one row of the table.
    if left.ctypes.data == right.ctypes.data:
        return end
    start, step = 0, _FIRST_LOOK
    while start < end:
        stop = min(start + step, end)
        differ = left[start:stop] != right[start:stop]
        if differ.any():
            return start + int(differ.argmax())
        start, step = stop, step * 2
    return end


def _clusters(rows: Sequence[np.ndarray]) -> list[list[int]]:
    """Requests by their first slot (not padding), where several have the same; each cluster in order of its rows."""

    def compare(left: int, right: int) -> int:
        one, other = rows[left], rows[right]
        n = common_length(one, other)
        if n == min(one.shape[0], other.shape[0]):
            return int(one.shape[0] - other.shape[0])
        return -1 if one[n] < other[n] else 1

    by_first: dict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        if row.shape[0] and row[0] > 0:
            by_first[int(row[0])].append(i)
    return [sorted(group, key=functools.cmp_to_key(compare)) for group in by_first.values() if len(group) > 1]


def shared_prefixes(requests: Requests) -> tuple[SharedPrefix, ...]:
    """Group the requests that share at least their first slot, with the slots that all of a group share."""
    rows = _rows(requests)
    return tuple(
        # In sorted order the first and the last have least in common.
        SharedPrefix(
            slots=common_length(rows[group[0]], rows[group[-1]]),
            requests=tuple(requests.rids[i] for i in sorted(group)),
        )
        for group in _clusters(rows)
    )


def longest_shared(requests: Requests) -> list[tuple[int, str | None]]:
    """For each request, the most leading slots it shares with any other, and the name of that one."""
    rows = _rows(requests)
    longest: list[tuple[int, str | None]] = [(0, None)] * len(rows)
    for group in _clusters(rows):
        # In sorted order nobody has more in common with a request than a neighbour.
        for left, right in itertools.pairwise(group):
            n = common_length(rows[left], rows[right])
            for one, other in ((left, right), (right, left)):
                if n > longest[one][0]:
                    longest[one] = (n, requests.rids[other])
    return longest
