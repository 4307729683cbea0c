"""The plan kernels: lengths to offsets by a parallel scan, then entries balanced over the grid.

Two launches, for any number of requests, with nothing read back by the host:

1. *chunks*: requests are cut into at most as many chunks as a block has threads, a block each. It scans its requests'
   lengths and leaves offsets relative to the chunk, and the chunk's totals.
2. *entries*: every block scans the totals, which turns relative offsets into absolute ones, and finishes its share
   of the write plan's offsets and seeds. Then it takes runs of verify entries, finds their requests by search and
   bisection, and looks up their slots.

Bytes moved per verify entry: 32 written, 4 of table read (the predecessor's is the neighbour's), 4 of token id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import int64

from canary_numba.engines.cuda.device import BLOCK_THREADS, cuda, multiprocessors
from canary_numba.engines.cuda.launcher import PreparedLaunch
from canary_numba.engines.cuda.plan_lookup import (
    block_exclusive_scan,
    find_request,
    find_request_together,
    lookup_slot,
    verify_start,
)
from canary_numba.engines.cuda.scatter import flat_table
from canary_numba.plan_rules import effective_prefix, window_start, write_length

_CHUNKS = BLOCK_THREADS
_BASES = _CHUNKS + 1
_TILE_ENTRIES = 8 * BLOCK_THREADS


@cuda.jit
def plan_chunks_kernel(
    rows: Any,
    prefix_lens: Any,
    extend_lens: Any,
    width: Any,
    window: Any,
    chunk: Any,
    verify_starts: Any,
    write_offsets: Any,
    totals: Any,
) -> None:
    """Scan the lengths of each chunk of requests; ``verify_starts`` and ``write_offsets`` become relative to it."""
    verify_sums = cuda.shared.array(BLOCK_THREADS, int64)
    write_sums = cuda.shared.array(BLOCK_THREADS, int64)
    bs = np.int64(rows.shape[0])
    begin = np.int64(cuda.blockIdx.x) * chunk
    end = min(begin + chunk, bs)
    verify_base = np.int64(0)
    write_base = np.int64(0)
    base = begin
    while base < end:
        r = base + np.int64(cuda.threadIdx.x)
        verify = np.int64(0)
        write = np.int64(0)
        if r < end:
            prefix = effective_prefix(rows[r], prefix_lens[r], width)
            verify = prefix - window_start(prefix, window)
            write = write_length(rows[r], extend_lens[r])
        verify_before, write_before = block_exclusive_scan(verify, write, verify_sums, write_sums)
        if r < end:
            verify_starts[r] = verify_base + verify_before
            write_offsets[r] = write_base + write_before
        verify_base += verify_sums[BLOCK_THREADS - 1]
        write_base += write_sums[BLOCK_THREADS - 1]
        cuda.syncthreads()
        base += np.int64(BLOCK_THREADS)
    if cuda.threadIdx.x == 0:
        totals[2 * cuda.blockIdx.x] = verify_base
        totals[2 * cuda.blockIdx.x + 1] = write_base


@cuda.jit
def plan_entries_kernel(
    rows: Any,
    prefix_lens: Any,
    extend_lens: Any,
    table: Any,
    table_stride: Any,
    table_rows: Any,
    width: Any,
    window: Any,
    mapping: Any,
    has_mapping: Any,
    pool: Any,
    pool_stride: Any,
    pool_rows: Any,
    pool_width: Any,
    valid_lens: Any,
    has_pool: Any,
    token_offset: Any,
    shift: Any,
    verify_starts: Any,
    totals: Any,
    out_slots: Any,
    out_tokens: Any,
    out_positions: Any,
    out_prevs: Any,
    out_num_valid: Any,
    out_enable: Any,
    write_offsets: Any,
    out_seeds: Any,
    out_num_reqs: Any,
) -> None:
    """Fill the verify entries, and finish the write plan."""
    verify_sums = cuda.shared.array(BLOCK_THREADS, int64)
    write_sums = cuda.shared.array(BLOCK_THREADS, int64)
    verify_bases = cuda.shared.array(_BASES, int64)
    write_bases = cuda.shared.array(_BASES, int64)
    thread = np.int64(cuda.threadIdx.x)
    bs = np.int64(rows.shape[0])
    num_chunks = np.int64(totals.shape[0] >> 1)
    chunk_verify = np.int64(0)
    chunk_write = np.int64(0)
    if thread < num_chunks:
        chunk_verify = totals[2 * thread]
        chunk_write = totals[2 * thread + 1]
    verify_base, write_base = block_exclusive_scan(chunk_verify, chunk_write, verify_sums, write_sums)
    verify_bases[thread] = verify_base
    write_bases[thread] = write_base
    cuda.syncthreads()
    total = verify_sums[BLOCK_THREADS - 1]
    write_total = write_sums[BLOCK_THREADS - 1]
    capacity = np.int64(out_slots.shape[0])
    index = np.int64(cuda.blockIdx.x) * np.int64(cuda.blockDim.x) + thread
    step = np.int64(cuda.gridDim.x) * np.int64(cuda.blockDim.x)
    if index == 0:
        out_num_valid[0] = np.int32(min(total, capacity))
        out_enable[0] = np.int32(1 if total <= capacity else 0)
        out_num_reqs[0] = np.int32(bs)

    r = index
    while r < write_offsets.shape[0]:
        if r < bs:
            prefix = effective_prefix(rows[r], prefix_lens[r], width)
            length = write_length(rows[r], extend_lens[r])
            seed = np.int64(-1)
            if prefix > 0 and length > 0:
                seed = lookup_slot(table, table_stride, table_rows, width, rows[r], prefix - 1, mapping, has_mapping)
            out_seeds[r] = seed
            write_offsets[r] += write_bases[r >> shift]
        elif r == bs:
            write_offsets[r] = write_total
        else:
            write_offsets[r] = 0
        r += step

    if total > capacity:
        return
    # The block searches all requests for the ends of a run of entries, a thread only what lies between.
    tile = np.int64(cuda.blockIdx.x) * np.int64(_TILE_ENTRIES)
    while tile < total:
        last = min(tile + np.int64(_TILE_ENTRIES), total) - 1
        r = find_request_together(verify_starts, verify_bases, shift, np.int64(0), bs, tile)
        beyond = find_request_together(verify_starts, verify_bases, shift, r, bs, last) + 1
        entry = tile + thread
        while entry <= last:
            r = find_request(verify_starts, verify_bases, shift, r, beyond, entry)
            row = rows[r]
            start = window_start(effective_prefix(row, prefix_lens[r], width), window)
            position = start + entry - verify_start(verify_starts, verify_bases, shift, r)
            prev = np.int64(-1)
            if position > 0:
                prev = lookup_slot(table, table_stride, table_rows, width, row, position - 1, mapping, has_mapping)
            q = position + token_offset
            token = np.int64(-1)
            if has_pool != 0 and 0 <= row < pool_rows and q < pool_width and q < valid_lens[r]:
                token = np.int64(pool[row * pool_stride + q])
            out_slots[entry] = lookup_slot(table, table_stride, table_rows, width, row, position, mapping, has_mapping)
            out_tokens[entry] = token
            out_positions[entry] = position
            out_prevs[entry] = prev
            entry += np.int64(BLOCK_THREADS)
        tile += np.int64(cuda.gridDim.x) * np.int64(_TILE_ENTRIES)


def _plan_launches(
    *,
    verify_plan_out: Any,
    write_plan_out: Any,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    swa_window_size: int,
    full_to_swa_index_mapping: torch.Tensor | None,
    req_to_verify_expected_tokens: torch.Tensor | None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None,
    kv_token_id_vs_position_offset: int,
) -> list[tuple[Any, int, list[Any]]]:
    """Choose kernels, numbers of blocks and arguments of the two plan launches, and allocate their scratch memory."""
    device = req_pool_indices.device
    bs = req_pool_indices.shape[0]
    empty = torch.empty(0, dtype=torch.int64, device=device)
    no_table = torch.empty((0, 0), dtype=torch.int32, device=device)
    # A chunk is a power of two, so that a shift finds it, and so large that _CHUNKS of them hold every request.
    shift = max(BLOCK_THREADS.bit_length() - 1, (max(bs, 1) - 1).bit_length() - (_CHUNKS.bit_length() - 1))
    chunk = 1 << shift
    num_chunks = max(1, -(-bs // chunk))
    verify_starts = torch.empty(max(bs, 1), dtype=torch.int64, device=device)
    totals = torch.empty(2 * num_chunks, dtype=torch.int64, device=device)
    mapping = empty if full_to_swa_index_mapping is None else full_to_swa_index_mapping
    pool = no_table if req_to_verify_expected_tokens is None else req_to_verify_expected_tokens
    valid_lens = empty if req_to_verify_expected_tokens is None else req_to_verify_expected_tokens_valid_lens
    table, table_stride, table_rows, width = flat_table(req_to_token)
    window = np.int64(swa_window_size)
    chunks = [
        req_pool_indices,
        prefix_lens,
        extend_seq_lens,
        width,
        window,
        np.int64(chunk),
        verify_starts,
        write_plan_out.write_offsets,
        totals,
    ]
    entries = [
        req_pool_indices,
        prefix_lens,
        extend_seq_lens,
        table,
        table_stride,
        table_rows,
        width,
        window,
        mapping,
        np.int64(full_to_swa_index_mapping is not None),
        *flat_table(pool),
        valid_lens,
        np.int64(req_to_verify_expected_tokens is not None),
        np.int64(kv_token_id_vs_position_offset),
        np.int64(shift),
        verify_starts,
        totals,
        verify_plan_out.verify_slot_indices,
        verify_plan_out.verify_expected_tokens,
        verify_plan_out.verify_expected_positions,
        verify_plan_out.verify_prev_slot_indices,
        verify_plan_out.verify_num_valid,
        verify_plan_out.enable,
        write_plan_out.write_offsets,
        write_plan_out.write_seed_slot_indices,
        write_plan_out.write_num_valid_reqs,
    ]
    entries_blocks = -(-verify_plan_out.verify_slot_indices.shape[0] // _TILE_ENTRIES)
    request_blocks = -(-write_plan_out.write_offsets.shape[0] // BLOCK_THREADS)
    blocks = max(1, min(max(entries_blocks, request_blocks), multiprocessors(device) * 16))
    return [(plan_chunks_kernel, num_chunks, chunks), (plan_entries_kernel, blocks, entries)]


def prepare_plan(**kwargs: Any) -> Callable[[], None]:
    """Prepare both launches for the keyword arguments of :func:`plan`."""
    device = kwargs["req_pool_indices"].device
    first, second = (
        PreparedLaunch(kernel, blocks, BLOCK_THREADS, device, arguments)
        for kernel, blocks, arguments in _plan_launches(**kwargs)
    )

    def run() -> None:
        first()
        second()

    return run


def plan(**kwargs: Any) -> None:
    """Run :func:`canary_numba.launch.launch_canary_plan_kernels` on CUDA; same keyword arguments."""
    prepare_plan(**kwargs)()
