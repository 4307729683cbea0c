"""Appending violation rows from a kernel: one atomic claims a ring slot; the path of a clean cache never gets here."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from canary_numba.context import AGGREGATE_FIELDS, AGGREGATE_FIRST_INDEX, ViolationAggregate
from canary_numba.engines.cuda.device import cuda, device_function
from canary_numba.layout import NUM_FAIL_REASONS


@device_function
def append_row(
    log: Any,
    entry: Any,
    slot: Any,
    position: Any,
    stored_token: Any,
    expected_token: Any,
    stored_hash: Any,
    expected_aux: Any,
    bits: Any,
) -> None:
    """Report one violation of plan index ``entry`` in a :class:`canary_numba.engines.cuda.bundles.Log`."""
    ring, aggregate = log.ring, log.aggregate
    at = cuda.atomic.add(log.write_index, 0, np.int32(1))
    if 0 <= at < ring.shape[0]:
        ring[at, 0] = log.kind
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
                cuda.atomic.add(aggregate, (log.kind, bit), 1)
        cuda.atomic.min(aggregate, (log.kind, AGGREGATE_FIRST_INDEX), entry)


def table_of(aggregate: ViolationAggregate | None, device: torch.device) -> torch.Tensor:
    """The aggregate's table, or an empty one in its place."""
    if aggregate is None:
        return torch.empty((0, AGGREGATE_FIELDS), dtype=torch.int64, device=device)
    return aggregate.table
