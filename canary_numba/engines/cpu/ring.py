"""Appending violation rows, and adding them to the aggregate, from compiled CPU code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from canary_numba.context import AGGREGATE_FIELDS, AGGREGATE_FIRST_INDEX, ViolationAggregate
from canary_numba.layout import NUM_FAIL_REASONS


def table_of(aggregate: ViolationAggregate | None) -> np.ndarray:
    """The aggregate's table as an array; without an aggregate an empty one, which compiled code takes for "none"."""
    if aggregate is None:
        return np.empty((0, AGGREGATE_FIELDS), dtype=np.int64)
    return aggregate.table.numpy()


@njit(cache=True)
def append_row(
    ring: Any,
    write_index: Any,
    aggregate: Any,
    entry: Any,
    kind: Any,
    slot: Any,
    position: Any,
    stored_token: Any,
    expected_token: Any,
    stored_hash: Any,
    expected_aux: Any,
    bits: Any,
) -> None:
    """Report one violation of plan index ``entry``: hashes are uint64, the rest int64."""
    at = write_index[0]
    write_index[0] = at + 1
    if 0 <= at < ring.shape[0]:
        ring[at, 0] = kind
        ring[at, 1] = slot
        ring[at, 2] = position
        ring[at, 3] = stored_token
        ring[at, 4] = expected_token
        ring[at, 5] = np.int64(stored_hash)
        ring[at, 6] = np.int64(expected_aux)
        ring[at, 7] = bits
    if aggregate.shape[0] > 0:
        for bit in range(NUM_FAIL_REASONS):
            if (bits >> bit) & 1:
                aggregate[kind, bit] += 1
        aggregate[kind, AGGREGATE_FIRST_INDEX] = min(aggregate[kind, AGGREGATE_FIRST_INDEX], entry)
