"""The write kernel: some warps walk the chains while the others fold the K/V bytes.

PREV_HASH is serial along a request, REAL_KV_HASH depends on nothing but the slot's bytes. So both run side by side in
one launch: chain warps (:mod:`canary_numba.engines.cuda.chain`) take a request each, or 32 of few tokens, and fill
three fields of its records, fold warps (:mod:`canary_numba.engines.cuda.fold`) take 32 tokens of whatever requests and
fill the fourth. Chain warps are spread over the blocks, one to a multiprocessor first, since two on one would share its
issue slots.

Bytes moved per token: 24 of token, position and slot, 32 of record, ``read_bytes`` of each source.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import int64, uint64

from canary_numba.engines.cuda.batch import make_picks
from canary_numba.engines.cuda.bundles import Log, Pool, Tokens
from canary_numba.engines.cuda.chain import FEW, make_walk_few, make_walk_request
from canary_numba.engines.cuda.device import (
    WARP,
    cuda,
    cuda_kernel,
    device_function,
)
from canary_numba.engines.cuda.fold import make_real_kv_fold
from canary_numba.engines.cuda.fold_shapes import SourceShape, block_threads, warp_tile_words

FLAG_ASSERT_INPUT = 1

_CARVEOUT = 44
"""Percent of shared memory: fewer fold warps than elsewhere, since chain warps need the issue slots more."""

_FEW = np.int64(FEW)
_ZERO = np.uint64(0)
_THREE = np.uint64(3)
_LANES = np.uint64(WARP)


@device_function
def clamp_range(offsets: Any, request: Any, num_tokens: Any) -> Any:
    """The flat range of ``request``, cut to the arrays: (begin, end), begin <= end."""
    begin = min(max(offsets[request], np.int64(0)), num_tokens)
    end = min(max(offsets[request + 1], np.int64(0)), num_tokens)
    return begin, max(begin, end)


@device_function
def covered(offsets: Any, num_reqs: Any, num_tokens: Any, entry: Any) -> Any:
    """Whether flat ``entry`` lies in any request's range, by looking at all of them."""
    found = False
    for request in range(num_reqs):
        begin, end = clamp_range(offsets, request, num_tokens)
        if begin <= entry < end:
            found = True
    return found


@device_function
def offsets_increase(offsets: Any, num_reqs: Any, flag: Any) -> Any:
    """Whether no range is decreasing; all threads of the block call it together, ``flag`` is shared memory."""
    if cuda.threadIdx.x == 0:
        flag[0] = 1
    cuda.syncthreads()
    request = np.int64(cuda.threadIdx.x)
    while request < num_reqs:
        if offsets[request + 1] < offsets[request]:
            flag[0] = 0
        request += np.int64(cuda.blockDim.x)
    cuda.syncthreads()
    return flag[0] != 0


def _make_fold_tokens(shapes: tuple[SourceShape, ...]) -> Any:
    real_kv_fold = make_real_kv_fold(shapes)

    @device_function
    def fold_tokens(
        pool: Any,
        offsets: Any,
        num_reqs: Any,
        slots: Any,
        src0: Any,
        src1: Any,
        src2: Any,
        src3: Any,
        increasing: Any,
        fold_warp: Any,
        fold_warps: Any,
        tile: Any,
        rows: Any,
    ) -> None:
        num_tokens = np.int64(slots.shape[0])
        begin = np.int64(0)
        end = num_tokens
        if increasing:
            begin = min(max(offsets[0], np.int64(0)), num_tokens)
            end = min(max(offsets[num_reqs], np.int64(0)), num_tokens)
        thread = np.uint64(cuda.threadIdx.x)
        lane = thread % _LANES
        warp = thread // _LANES
        group = begin + fold_warp * np.int64(WARP)
        while group < end:
            entry = group + np.int64(lane)
            slot = np.int64(-1)
            if entry < end and (increasing or covered(offsets, num_reqs, num_tokens, entry)):
                slot = np.int64(slots[entry])
            inside = 0 <= slot < pool.num_slots
            safe = np.uint64(slot) if inside else _ZERO
            real_hash = real_kv_fold(_ZERO, src0, src1, src2, src3, safe, tile, rows, warp, lane)
            if inside:
                pool.records[safe * pool.stride + _THREE] = real_hash
            group += fold_warps * np.int64(WARP)

    return fold_tokens


@lru_cache(maxsize=256)
def make_write_kernel(shapes: tuple[SourceShape, ...], paired: bool, count: int) -> Any:
    """Build the write kernel for ``count`` contexts with sources of these shapes, for paired records or not."""
    pick, pick_number = make_picks(count)
    has_sources = len(shapes) > 0
    walk_few = make_walk_few(paired, has_sources)
    walk_request = make_walk_request(paired, has_sources)
    fold_tokens = _make_fold_tokens(shapes)
    threads = block_threads(shapes)
    warps = threads // WARP
    tile_words = max(1, warps * warp_tile_words(shapes))
    stage_words = 2 * threads
    state_words = 4 * warps

    @cuda_kernel(threads=threads, carveout=_CARVEOUT if warp_tile_words(shapes) else None)
    def canary_write_kernel(
        all_records: Any,
        stride: Any,
        num_slots: Any,
        offsets: Any,
        seeds: Any,
        num_valid_reqs: Any,
        tokens: Any,
        positions: Any,
        slots: Any,
        expected_tokens: Any,
        expected_positions: Any,
        all_src0: Any,
        all_src1: Any,
        all_src2: Any,
        all_src3: Any,
        chain_assert: Any,
        kinds: Any,
        flags: Any,
        ring: Any,
        write_index: Any,
        slot_runs: Any,
        kernel_runs: Any,
        aggregate: Any,
    ) -> None:
        pool = Pool(pick(all_records), stride, num_slots)
        kind = pick_number(kinds)
        staged = cuda.shared.array(stage_words, uint64)
        staged_shifts = cuda.shared.array(stage_words, uint64)
        staged_slot = cuda.shared.array(threads, int64)
        state = cuda.shared.array(state_words, uint64)
        if cuda.blockIdx.y == 0 and cuda.threadIdx.x == 0:
            cuda.atomic.add(pick(kernel_runs), 0, 1)
        num_reqs = min(max(np.int64(num_valid_reqs[0]), np.int64(0)), np.int64(seeds.shape[0]))
        if num_reqs == 0:
            return
        num_tokens = np.int64(slots.shape[0])
        blocks = np.int64(cuda.gridDim.y)
        warp_index = np.int64(cuda.threadIdx.x // WARP) * blocks + np.int64(cuda.blockIdx.y)
        chain_warps = blocks * np.int64(warps)
        if has_sources:
            tile = cuda.shared.array(tile_words, uint64)
            rows = cuda.shared.array(threads, uint64)
            flag = cuda.shared.array(1, int64)
            fold_warps = chain_warps
            chain_warps = min(num_reqs, chain_warps >> 1)
            fold_warps -= chain_warps
            increasing = offsets_increase(offsets, num_reqs, flag)
            if warp_index >= chain_warps:
                fold_tokens(
                    pool,
                    offsets,
                    num_reqs,
                    slots,
                    pick(all_src0),
                    pick(all_src1),
                    pick(all_src2),
                    pick(all_src3),
                    increasing,
                    warp_index - chain_warps,
                    fold_warps,
                    tile,
                    rows,
                )
                return
        given = Tokens(tokens, positions, slots, expected_tokens, expected_positions, (flags & FLAG_ASSERT_INPUT) != 0)
        log = Log(kind, ring, write_index, aggregate)
        assert_chain = chain_assert[0] != 0
        counted = np.int64(0)
        request = warp_index * np.int64(WARP) + np.int64(cuda.threadIdx.x % WARP)
        while request < num_reqs:
            begin, end = clamp_range(offsets, request, num_tokens)
            if end - begin <= _FEW:
                counted += walk_few(pool, given, log, begin, end, seeds[request], assert_chain)
            request += chain_warps * np.int64(WARP)
        request = warp_index
        while request < num_reqs:
            begin, end = clamp_range(offsets, request, num_tokens)
            if end - begin > _FEW:
                counted += walk_request(
                    pool,
                    given,
                    log,
                    begin,
                    end,
                    seeds[request],
                    assert_chain,
                    staged,
                    staged_shifts,
                    staged_slot,
                    state,
                )
            request += chain_warps
        if counted > 0:
            cuda.atomic.add(pick(slot_runs), 0, counted)

    return canary_write_kernel
