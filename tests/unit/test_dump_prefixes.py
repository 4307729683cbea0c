"""Shared leading slots, against a comparison of all pairs."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from canary_numba.dump.model import Requests
from canary_numba.dump.prefixes import common_length, longest_shared, shared_prefixes


def requests_of(rows: list[list[int]], indices: list[int] | None = None, width: int = 8) -> Requests:
    table = torch.zeros((len(rows) + 1, width), dtype=torch.int32)
    for i, row in enumerate(rows):
        table[i + 1, : len(row)] = torch.tensor(row, dtype=torch.int32)
    bs = len(rows)
    return Requests(
        rids=tuple(f"r{i}" for i in range(bs)),
        req_pool_indices=torch.tensor(indices or list(range(1, bs + 1)), dtype=torch.int64),
        prefix_lens=torch.tensor([len(row) for row in rows], dtype=torch.int64),
        extend_seq_lens=torch.zeros(bs, dtype=torch.int64),
        req_to_token=table,
    )


def common(one: list[int], other: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@given(st.lists(st.lists(st.integers(-1, 3), max_size=8), min_size=1, max_size=12))
def test_as_all_pairs_say(rows: list[list[int]]) -> None:
    requests = requests_of(rows)
    for i, (count, peer) in enumerate(longest_shared(requests)):
        real = rows[i][:1] > [0]
        shared = {f"r{j}": common(rows[i], rows[j]) for j in range(len(rows)) if real and j != i}
        assert count == max(shared.values(), default=0)
        assert (peer is None) == (count == 0)
        assert peer is None or shared[peer] == count
    groups = {prefix.requests: prefix.slots for prefix in shared_prefixes(requests)}
    by_first: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        if row and row[0] > 0:
            by_first.setdefault(row[0], []).append(i)
    expected: dict[Any, int] = {
        tuple(f"r{i}" for i in group): min(common(rows[group[0]], rows[i]) for i in group)
        for group in by_first.values()
        if len(group) > 1
    }
    assert groups == expected


def test_long_rows_part_late() -> None:
    left = torch.arange(100_000, dtype=torch.int32).numpy()
    right = left.copy()
    assert common_length(left, right) == 100_000
    for place in (99_999, 64, 63, 0):
        right[place] = -7
        assert common_length(left, right) == place


def test_rows_that_are_padding_or_not_there_share_nothing() -> None:
    rows = [[5, 6], [5, 6], [5, 6], [5, 6]]
    requests = requests_of(rows, [1, 0, 99, -1])
    assert shared_prefixes(requests) == ()
    assert longest_shared(requests) == [(0, None)] * 4


def test_requests_of_one_row() -> None:
    requests = requests_of([[5, 6, 7], [5, 6, 8]], [1, 1])
    requests.prefix_lens[1] = 2
    assert longest_shared(requests) == [(2, "r1"), (2, "r0")]


def test_a_prefix_longer_than_the_table() -> None:
    requests = requests_of([[1, 2], [1, 2]], width=2)
    requests.prefix_lens[0] = 1000
    assert longest_shared(requests) == [(2, "r1"), (2, "r0")]
