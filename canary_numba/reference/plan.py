"""Plan in torch: the requests' lengths first, then all verify entries at once."""

from __future__ import annotations

from typing import Any

import torch

from canary_numba.layout import REQ_POOL_IDX_PADDING, SLOT_OUT_OF_RANGE
from canary_numba.reference.words import gather, within


def _lookup(
    table: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, mapping: torch.Tensor | None
) -> torch.Tensor:
    """Slot of each row and position, through the mapping if there is one; ``SLOT_OUT_OF_RANGE`` where it leads out."""
    inside = within(rows, table.shape[0]) & within(positions, table.shape[1])
    slots = torch.full_like(rows, SLOT_OUT_OF_RANGE)
    slots[inside] = table[rows[inside], positions[inside]].long()
    if mapping is None:
        return slots
    return torch.where(slots < 0, slots, gather(mapping, slots, SLOT_OUT_OF_RANGE))


def _expected_tokens(
    pool: torch.Tensor, rows: torch.Tensor, indices: torch.Tensor, valid_lens: torch.Tensor
) -> torch.Tensor:
    known = within(rows, pool.shape[0]) & within(indices, pool.shape[1]) & (indices < valid_lens)
    tokens = torch.full_like(rows, -1)
    tokens[known] = pool[rows[known], indices[known]].long()
    return tokens


def _exclusive_sum(lengths: torch.Tensor) -> torch.Tensor:
    """Offsets of consecutive ranges, int64 ``[n + 1]``."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


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
    """Run :func:`canary_numba.launch.launch_canary_plan_kernels` in torch."""
    bs = req_pool_indices.shape[0]
    width = req_to_token.shape[1]
    padding = req_pool_indices == REQ_POOL_IDX_PADDING
    prefixes = prefix_lens.clamp(0, width + 1).masked_fill(padding, 0)
    write_lens = extend_seq_lens.clamp(min=0).masked_fill(padding, 0)

    write_plan_out.write_num_valid_reqs.fill_(bs)
    write_plan_out.write_offsets.zero_()
    write_plan_out.write_offsets[: bs + 1] = _exclusive_sum(write_lens)
    seeds = _lookup(req_to_token, req_pool_indices, prefixes - 1, full_to_swa_index_mapping)
    write_plan_out.write_seed_slot_indices[:bs] = seeds.masked_fill((prefixes == 0) | (write_lens == 0), -1)

    starts = torch.zeros_like(prefixes)
    if swa_window_size > 0:
        starts = (prefixes - min(swa_window_size, width + 1)).clamp(min=0)
    offsets = _exclusive_sum(prefixes - starts)
    total = int(offsets[-1])
    verify_plan_out.verify_num_valid.fill_(min(total, verify_capacity))
    verify_plan_out.enable.fill_(int(total <= verify_capacity))
    if total > verify_capacity:
        return

    request = torch.repeat_interleave(torch.arange(bs, device=offsets.device), prefixes - starts)
    rows = req_pool_indices[request]
    positions = starts[request] + torch.arange(total, device=offsets.device) - offsets[request]
    prevs = _lookup(req_to_token, rows, positions - 1, full_to_swa_index_mapping)
    verify_plan_out.verify_slot_indices[:total] = _lookup(req_to_token, rows, positions, full_to_swa_index_mapping)
    verify_plan_out.verify_prev_slot_indices[:total] = prevs.masked_fill(positions == 0, -1)
    verify_plan_out.verify_expected_positions[:total] = positions
    tokens = torch.full_like(positions, -1)
    if req_to_verify_expected_tokens is not None and req_to_verify_expected_tokens_valid_lens is not None:
        tokens = _expected_tokens(
            req_to_verify_expected_tokens,
            rows,
            positions + kv_token_id_vs_position_offset,
            req_to_verify_expected_tokens_valid_lens[request],
        )
    verify_plan_out.verify_expected_tokens[:total] = tokens
