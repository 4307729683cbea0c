"""The plan kernels: lengths to offsets by a parallel scan, then entries balanced over the grid.

Bytes moved per verify entry: 32 written, 4 of table read (the predecessor's is the neighbour's), 4 of token id.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import int32, int64

from canary_numba.engines.cuda.bundles import Entries, KnownTokens, Requests, Starts, Table
from canary_numba.engines.cuda.device import BLOCK_THREADS, cuda, device_function, store_pair
from canary_numba.engines.cuda.plan_lookup import (
    block_exclusive_scan,
    find_request,
    find_start,
    lookup_slot,
    lookup_token,
    row_start,
    verify_start,
)
from canary_numba.plan_rules import effective_prefix, window_start, write_length

MAX_CHUNKS = BLOCK_THREADS
_BASES = MAX_CHUNKS + 1
_NONE = np.int64(-1)
_NOT_ONE = np.int64(-2)
_ONE = np.uint64(1)
LEAST_TILE = 2 * BLOCK_THREADS
"""Entries that are worth a block of their own: two a thread."""
_LEAST_TILE = np.int64(LEAST_TILE)


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


@device_function
def finish_write_plan(
    requests: Any, table: Any, shift: Any, write_bases: Any, write_total: Any, write_offsets: Any, out_seeds: Any
) -> None:
    """Make this block's share of the write offsets absolute, and look up the seeds."""
    bs = np.int64(requests.rows.shape[0])
    r = np.int64(cuda.blockIdx.x) * np.int64(cuda.blockDim.x) + np.int64(cuda.threadIdx.x)
    while r < write_offsets.shape[0]:
        if r < bs:
            prefix = effective_prefix(requests.rows[r], requests.prefix_lens[r], table.width)
            length = write_length(requests.rows[r], requests.extend_lens[r])
            seed = np.int64(-1)
            if prefix > 0 and length > 0:
                seed = lookup_slot(table, row_start(table, requests.rows[r]), prefix - 1)
            out_seeds[r] = seed
            write_offsets[r] += write_bases[r >> shift]
        elif r == bs:
            write_offsets[r] = write_total
        else:
            write_offsets[r] = 0
        r += np.int64(cuda.gridDim.x) * np.int64(cuda.blockDim.x)


def _make_fill_tile(paired: bool) -> Any:
    @device_function
    def put(array: Any, entry: Any, first: Any, second: Any, has_first: Any, has_second: Any) -> None:
        """Store what there is of two neighbours, the first at an even index."""
        index = np.uint64(entry)
        if paired and has_first and has_second:
            store_pair(array, index, np.uint64(first), np.uint64(second))
            return
        if has_first:
            array[index] = np.uint64(first)
        if has_second:
            array[index + _ONE] = np.uint64(second)

    @device_function
    def fill_tile(
        requests: Any, table: Any, known: Any, starts: Any, out: Any, tile: Any, tile_entries: Any, total: Any
    ) -> None:
        """Fill the entries from ``tile`` on, an even one; all threads of the block call it together."""
        # Of each request at hand: first entry in the tile, position less entry, where its rows of table and pool start.
        begins = cuda.shared.array(BLOCK_THREADS, int32)
        shifts = cuda.shared.array(BLOCK_THREADS, int64)
        table_starts = cuda.shared.array(BLOCK_THREADS, int64)
        known_starts = cuda.shared.array(BLOCK_THREADS, int64)
        known_lens = cuda.shared.array(BLOCK_THREADS, int64)
        thread = np.int64(cuda.threadIdx.x)
        bs = np.int64(requests.rows.shape[0])
        end = min(tile + tile_entries, total)
        r = find_request(starts, bs, tile)
        done = tile
        while done < end:
            mine = r + thread
            begun = 0
            if mine < bs:
                row = requests.rows[mine]
                start = verify_start(starts, mine)
                if start < end:
                    begun = 1
                begins[thread] = np.int32(min(max(start - tile, np.int64(0)), tile_entries))
                prefix = effective_prefix(row, requests.prefix_lens[mine], table.width)
                shifts[thread] = window_start(prefix, requests.window) - start
                table_starts[thread] = row_start(table, row)
                known_starts[thread] = np.int64(-1)
                if known.present != 0:
                    known_starts[thread] = row_start(known, row)
                    known_lens[thread] = min(known.valid_lens[mine], known.width)
            count = np.int32(cuda.syncthreads_count(begun))
            upto = end
            if count == BLOCK_THREADS and r + np.int64(BLOCK_THREADS) < bs:
                upto = min(verify_start(starts, r + np.int64(BLOCK_THREADS)), end)
            near = np.int32(0)
            # Two entries a thread: they share a request as a rule, and the first is the second's predecessor.
            entry = (done & _NOT_ONE) + 2 * thread
            while entry < upto:
                has_first = entry >= done
                has_second = entry + 1 < upto
                slot, token, position, prev = _NONE, _NONE, _NONE, _NONE
                if has_first:
                    near = find_start(begins, near, count, np.int32(entry - tile))
                    at = np.uint32(near)
                    position = entry + shifts[at]
                    if position > 0:
                        prev = lookup_slot(table, table_starts[at], position - 1)
                    slot = lookup_slot(table, table_starts[at], position)
                    token = lookup_token(known, known_starts[at], known_lens[at], position)
                next_slot, next_token, next_position, next_prev = _NONE, _NONE, _NONE, _NONE
                if has_second:
                    owner = near
                    while np.int32(near + 1) < count and begins[np.uint32(near + 1)] <= np.int32(entry + 1 - tile):
                        near = np.int32(near + 1)
                    at = np.uint32(near)
                    next_position = entry + 1 + shifts[at]
                    if has_first and owner == near:
                        next_prev = slot
                    elif next_position > 0:
                        next_prev = lookup_slot(table, table_starts[at], next_position - 1)
                    next_slot = lookup_slot(table, table_starts[at], next_position)
                    next_token = lookup_token(known, known_starts[at], known_lens[at], next_position)
                put(out.slots, entry, slot, next_slot, has_first, has_second)
                put(out.tokens, entry, token, next_token, has_first, has_second)
                put(out.positions, entry, position, next_position, has_first, has_second)
                put(out.prevs, entry, prev, next_prev, has_first, has_second)
                entry += 2 * np.int64(BLOCK_THREADS)
            cuda.syncthreads()
            done = upto
            r += np.int64(BLOCK_THREADS)

    return fill_tile


@lru_cache(maxsize=2)
def make_plan_entries_kernel(paired: bool) -> Any:
    """Build the kernel that fills the verify entries and finishes the write plan.

    ``paired``: the arrays of verify entries, uint64 to it, start at multiples of 16 bytes.
    """
    fill_tile = _make_fill_tile(paired)

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
        requests = Requests(rows, prefix_lens, extend_lens, window)
        slots_of = Table(table, table_stride, table_rows, width, mapping, has_mapping)
        known = KnownTokens(pool, pool_stride, pool_rows, pool_width, valid_lens, has_pool, token_offset)
        verify_sums = cuda.shared.array(BLOCK_THREADS, int64)
        write_sums = cuda.shared.array(BLOCK_THREADS, int64)
        verify_bases = cuda.shared.array(_BASES, int64)
        write_bases = cuda.shared.array(_BASES, int64)
        thread = np.int64(cuda.threadIdx.x)
        chunk_verify = np.int64(0)
        chunk_write = np.int64(0)
        if thread < np.int64(totals.shape[0] >> 1):
            chunk_verify = totals[2 * thread]
            chunk_write = totals[2 * thread + 1]
        verify_base, write_base = block_exclusive_scan(chunk_verify, chunk_write, verify_sums, write_sums)
        verify_bases[thread] = verify_base
        write_bases[thread] = write_base
        cuda.syncthreads()
        total = verify_sums[BLOCK_THREADS - 1]
        capacity = np.int64(out_slots.shape[0])
        if cuda.blockIdx.x == 0 and thread == 0:
            out_num_valid[0] = np.int32(min(total, capacity))
            out_enable[0] = np.int32(1 if total <= capacity else 0)
            out_num_reqs[0] = np.int32(rows.shape[0])
        finish_write_plan(
            requests, slots_of, shift, write_bases, write_sums[BLOCK_THREADS - 1], write_offsets, out_seeds
        )
        # A tile a block, all of one size; whole least tiles, so that it begins at an even entry.
        share = (total + np.int64(cuda.gridDim.x) - 1) // np.int64(cuda.gridDim.x)
        tile_entries = (share + _LEAST_TILE - 1) // _LEAST_TILE * _LEAST_TILE
        tile = np.int64(cuda.blockIdx.x) * tile_entries
        if total <= capacity and tile < total:
            starts = Starts(verify_starts, verify_bases, shift)
            out = Entries(out_slots, out_tokens, out_positions, out_prevs)
            fill_tile(requests, slots_of, known, starts, out, tile, tile_entries, total)

    return plan_entries_kernel
