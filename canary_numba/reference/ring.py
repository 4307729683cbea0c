"""Reporting violation rows from torch: the ring, and the aggregate beside it."""

from __future__ import annotations

from typing import Any

import torch

from canary_numba.context import AGGREGATE_FIRST_INDEX, AGGREGATE_NEVER_WRITTEN
from canary_numba.layout import NUM_FAIL_REASONS, VIOLATION_FIELD_FAIL_REASON_BITS


def build_rows(
    context: Any,
    *,
    slot: torch.Tensor,
    position: torch.Tensor | int,
    stored_token: torch.Tensor | int,
    expected_token: torch.Tensor | int,
    stored_hash: torch.Tensor | int,
    expected_aux: torch.Tensor | int,
    bits: torch.Tensor | int,
) -> torch.Tensor:
    """Lay out violation rows, int64 ``[n, 8]``; ``slot`` is int64 ``[n]``, the rest ``[n]`` or one value for all."""
    fields = (int(context.kernel_kind), slot, position, stored_token, expected_token, stored_hash, expected_aux, bits)
    columns = [value if isinstance(value, torch.Tensor) else torch.full_like(slot, value) for value in fields]
    return torch.stack(columns, dim=1)


def report(context: Any, rows: torch.Tensor, entries: torch.Tensor, aggregate: Any) -> None:
    """Append ``rows`` (int64 ``[n, 8]``) in order, and add them to the aggregate (None = there is none).

    ``entries``: int64 ``[n]``, the plan index that each row is about.
    """
    ring, index = context.violation_ring, context.violation_write_index
    # int32 like the index: a write index near its end wraps here as it does in memory.
    at = index + torch.arange(rows.shape[0], dtype=torch.int32, device=rows.device)
    kept = (at >= 0) & (at < ring.shape[0])
    ring[at[kept].long()] = rows[kept]
    index += rows.shape[0]
    if aggregate is None or not rows.shape[0]:
        return
    counters = aggregate.table[int(context.kernel_kind)]
    bit = torch.arange(NUM_FAIL_REASONS, device=rows.device)
    counters[:NUM_FAIL_REASONS] += ((rows[:, VIOLATION_FIELD_FAIL_REASON_BITS, None] >> bit) & 1).sum(dim=0)
    counters[AGGREGATE_FIRST_INDEX] = torch.minimum(counters[AGGREGATE_FIRST_INDEX], entries.min())


def count_never_written(context: Any, never_written: torch.Tensor, aggregate: Any) -> None:
    """Add the True entries of ``never_written`` to the aggregate (None = there is none)."""
    if aggregate is not None:
        aggregate.table[int(context.kernel_kind), AGGREGATE_NEVER_WRITTEN] += never_written.sum()
