"""Plan and scatter on the CPU: offsets in order, then requests in parallel."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit, prange

from canary_numba.layout import SLOT_OUT_OF_RANGE
from canary_numba.plan_rules import effective_prefix, window_start, write_length


@njit(cache=True)
def _lookup(table: Any, row: Any, position: Any, mapping: Any, has_mapping: Any):
    if row < 0 or row >= table.shape[0] or position >= table.shape[1]:
        return SLOT_OUT_OF_RANGE
    slot = np.int64(table[row, position])
    if has_mapping and slot >= 0:
        if slot >= mapping.shape[0]:
            return SLOT_OUT_OF_RANGE
        return mapping[slot]
    return slot


@njit(cache=True)
def _plan_offsets(
    rows: Any,
    prefix_lens: Any,
    extend_lens: Any,
    table: Any,
    window: Any,
    mapping: Any,
    has_mapping: Any,
    verify_offsets: Any,
    write_offsets: Any,
    seeds: Any,
):
    bs = rows.shape[0]
    verify_total = 0
    write_total = 0
    for r in range(bs):
        prefix = effective_prefix(rows[r], prefix_lens[r], table.shape[1])
        length = write_length(rows[r], extend_lens[r])
        verify_offsets[r] = verify_total
        write_offsets[r] = write_total
        verify_total += prefix - window_start(prefix, window)
        write_total += length
        seeds[r] = -1
        if prefix > 0 and length > 0:
            seeds[r] = _lookup(table, rows[r], prefix - 1, mapping, has_mapping)
    verify_offsets[bs] = verify_total
    write_offsets[bs] = write_total
    write_offsets[bs + 1 :] = 0


@njit(parallel=True, cache=True)
def _plan_entries(
    rows: Any,
    prefix_lens: Any,
    table: Any,
    window: Any,
    mapping: Any,
    has_mapping: Any,
    pool: Any,
    valid_lens: Any,
    has_pool: Any,
    token_offset: Any,
    verify_offsets: Any,
    out_slots: Any,
    out_tokens: Any,
    out_positions: Any,
    out_prevs: Any,
):
    for r in prange(rows.shape[0]):
        row = rows[r]
        prefix = effective_prefix(row, prefix_lens[r], table.shape[1])
        start = window_start(prefix, window)
        prev = np.int64(-1)
        if 0 < start < prefix:
            prev = _lookup(table, row, start - 1, mapping, has_mapping)
        for position in range(start, prefix):
            e = verify_offsets[r] + position - start
            slot = _lookup(table, row, position, mapping, has_mapping)
            q = position + token_offset
            token = np.int64(-1)
            if has_pool and 0 <= row < pool.shape[0] and q < valid_lens[r] and q < pool.shape[1]:
                token = np.int64(pool[row, q])
            out_slots[e] = slot
            out_tokens[e] = token
            out_positions[e] = position
            out_prevs[e] = prev
            prev = slot


def plan(
    *,
    verify_plan_out: Any,
    write_plan_out: Any,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    swa_window_size: int,
    full_to_swa_index_mapping: torch.Tensor | None,
    verify_capacity: int,
    req_to_verify_expected_tokens: torch.Tensor | None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None,
    kv_token_id_vs_position_offset: int,
) -> None:
    """Run :func:`canary_numba.launch.launch_canary_plan_kernels` on the CPU."""
    rows, prefixes = req_pool_indices.numpy(), prefix_lens.numpy()
    bs = rows.shape[0]
    table = req_to_token.numpy()
    has_mapping = full_to_swa_index_mapping is not None
    mapping = np.empty(0, np.int64) if full_to_swa_index_mapping is None else full_to_swa_index_mapping.numpy()
    verify_offsets = np.empty(bs + 1, dtype=np.int64)
    write_plan_out.write_num_valid_reqs.numpy()[0] = bs
    _plan_offsets(
        rows,
        prefixes,
        extend_seq_lens.numpy(),
        table,
        swa_window_size,
        mapping,
        has_mapping,
        verify_offsets,
        write_plan_out.write_offsets.numpy(),
        write_plan_out.write_seed_slot_indices.numpy(),
    )
    total = int(verify_offsets[bs])
    verify_plan_out.verify_num_valid.numpy()[0] = min(total, verify_capacity)
    verify_plan_out.enable.numpy()[0] = int(total <= verify_capacity)
    if total > verify_capacity:
        return
    has_pool = req_to_verify_expected_tokens is not None
    pool, valid_lens = np.empty((0, 0), np.int32), np.empty(0, np.int64)
    if req_to_verify_expected_tokens is not None and req_to_verify_expected_tokens_valid_lens is not None:
        pool = req_to_verify_expected_tokens.numpy()
        valid_lens = req_to_verify_expected_tokens_valid_lens.numpy()
    _plan_entries(
        rows,
        prefixes,
        table,
        swa_window_size,
        mapping,
        has_mapping,
        pool,
        valid_lens,
        has_pool,
        kv_token_id_vs_position_offset,
        verify_offsets,
        verify_plan_out.verify_slot_indices.numpy(),
        verify_plan_out.verify_expected_tokens.numpy(),
        verify_plan_out.verify_expected_positions.numpy(),
        verify_plan_out.verify_prev_slot_indices.numpy(),
    )


@njit(cache=True)
def _scatter(flat_in: Any, offsets: Any, rows: Any, pool: Any):
    # Serial, so that with a row given twice the later request wins in every run.
    for r in range(rows.shape[0]):
        row = rows[r]
        if row < 0 or row >= pool.shape[0]:
            continue
        begin = offsets[r]
        # The difference of garbage offsets may wrap around: an empty range must be told by comparing them.
        length = min(offsets[r + 1] - begin, pool.shape[1]) if offsets[r + 1] > begin else 0
        for j in range(length):
            if 0 <= begin + j < flat_in.shape[0]:
                pool[row, j] = np.int32(flat_in[begin + j])


def scatter(
    *, flat_in: torch.Tensor, offsets: torch.Tensor, req_pool_indices: torch.Tensor, pool_out: torch.Tensor
) -> None:
    """Run :func:`canary_numba.launch.launch_scatter_req_token_ids_kernel` on the CPU."""
    _scatter(flat_in.numpy(), offsets.numpy(), req_pool_indices.numpy(), pool_out.numpy())
