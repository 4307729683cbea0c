"""The write kernel: some warps walk the chains while the others fold the K/V bytes.

PREV_HASH is serial along a request, REAL_KV_HASH depends on nothing but the slot's bytes. So both run side by side in
one launch: chain warps (:mod:`canary_numba.engines.cuda.chain`) take a request each and fill three fields of its
records, fold warps (:mod:`canary_numba.engines.cuda.fold`) take 32 tokens of whatever requests and fill the fourth.
Chain warps are spread over the blocks, one to a multiprocessor first, since two on one would share its issue slots.

Bytes moved per token: 24 of token, position and slot, 32 of record, ``read_bytes`` of each source.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numba import int64, uint64

from canary_numba.context import ViolationAggregate
from canary_numba.engines.cuda.chain import make_walk_request
from canary_numba.engines.cuda.device import (
    WARP,
    cuda,
    cuda_kernel,
    device_function,
    multiprocessors,
)
from canary_numba.engines.cuda.fold import (
    NARROW_TILE_WORDS,
    SourceShape,
    block_threads,
    kernel_sources,
    make_real_kv_fold,
    warp_tile_words,
)
from canary_numba.engines.cuda.launcher import PreparedLaunch
from canary_numba.engines.cuda.records import record_words, records_are_paired
from canary_numba.engines.cuda.ring import table_of
from canary_numba.sources import active_sources

FLAG_ASSERT_INPUT = 1

_CARVEOUT = 44
"""Percent of shared memory: fewer fold warps than elsewhere, since chain warps need the issue slots more."""

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
        records: Any,
        stride: Any,
        num_slots: Any,
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
            inside = 0 <= slot < num_slots
            safe = np.uint64(slot) if inside else _ZERO
            real_hash = real_kv_fold(_ZERO, src0, src1, src2, src3, safe, tile, rows, warp, lane)
            if inside:
                records[safe * stride + _THREE] = real_hash
            group += fold_warps * np.int64(WARP)

    return fold_tokens


@lru_cache(maxsize=256)
def make_write_kernel(shapes: tuple[SourceShape, ...], paired: bool) -> Any:
    """Build the write kernel for sources of these shapes and for paired records or not."""
    has_sources = len(shapes) > 0
    fold_tokens = _make_fold_tokens(shapes)
    walk_request = make_walk_request(paired, has_sources)
    threads = block_threads(shapes)
    warps = threads // WARP
    tile_words = max(1, warps * warp_tile_words(shapes))
    stage_words = 2 * threads
    state_words = 4 * warps

    @cuda_kernel(threads=threads, carveout=_CARVEOUT if warp_tile_words(shapes) else None)
    def canary_write_kernel(
        records: Any,
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
        src0: Any,
        src1: Any,
        src2: Any,
        src3: Any,
        chain_assert: Any,
        kind: Any,
        flags: Any,
        ring: Any,
        write_index: Any,
        slot_run: Any,
        kernel_run: Any,
        aggregate: Any,
    ) -> None:
        staged = cuda.shared.array(stage_words, uint64)
        staged_shifts = cuda.shared.array(stage_words, uint64)
        staged_slot = cuda.shared.array(threads, int64)
        state = cuda.shared.array(state_words, uint64)
        if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
            cuda.atomic.add(kernel_run, 0, 1)
        num_reqs = min(max(np.int64(num_valid_reqs[0]), np.int64(0)), np.int64(seeds.shape[0]))
        if num_reqs == 0:
            return
        num_tokens = np.int64(slots.shape[0])
        blocks = np.int64(cuda.gridDim.x)
        warp_index = np.int64(cuda.threadIdx.x // WARP) * blocks + np.int64(cuda.blockIdx.x)
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
                    records,
                    stride,
                    num_slots,
                    offsets,
                    num_reqs,
                    slots,
                    src0,
                    src1,
                    src2,
                    src3,
                    increasing,
                    warp_index - chain_warps,
                    fold_warps,
                    tile,
                    rows,
                )
                return
        counted = np.int64(0)
        request = warp_index
        while request < num_reqs:
            begin, end = clamp_range(offsets, request, num_tokens)
            counted += walk_request(
                records,
                stride,
                num_slots,
                begin,
                end,
                seeds[request],
                tokens,
                positions,
                slots,
                expected_tokens,
                expected_positions,
                (flags & FLAG_ASSERT_INPUT) != 0,
                chain_assert[0] != 0,
                kind,
                ring,
                write_index,
                aggregate,
                staged,
                staged_shifts,
                staged_slot,
                state,
            )
            request += chain_warps
        if counted > 0:
            cuda.atomic.add(slot_run, 0, counted)

    return canary_write_kernel


def _arguments(
    *,
    context: Any,
    plan: Any,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    out_cache_loc: torch.Tensor,
    expected_input_tokens: torch.Tensor | None,
    expected_input_positions: torch.Tensor | None,
    aggregate_violations: ViolationAggregate | None,
) -> tuple[Any, int, int, list[Any]]:
    """Choose kernel, blocks, threads and arguments of a write launch."""
    buf = context.canary_buf
    device = buf.device
    sources = active_sources(context) if buf.shape[0] > 0 else []
    shapes = tuple(SourceShape.of(s, NARROW_TILE_WORDS) for s in sources)
    threads = block_threads(shapes)
    kernel = make_write_kernel(shapes, records_are_paired(buf))
    # A block a request as far as they go: two chains on one multiprocessor would share its issue slots.
    requests = plan.write_seed_slot_indices.shape[0]
    blocks = max(1, min(requests, multiprocessors(device) * 4))
    if sources:
        # A warp for each chain and for each 32 tokens to fold, as far as they go; two at least, one of each kind.
        wanted = max(2, requests + -(-out_cache_loc.shape[0] // WARP))
        blocks = max(blocks, min(-(-wanted * WARP // threads), multiprocessors(device) * 1024 // threads))
    arguments = [
        record_words(buf),
        np.uint64(buf.shape[1] // 8),
        np.int64(buf.shape[0]),
        plan.write_offsets,
        plan.write_seed_slot_indices,
        plan.write_num_valid_reqs,
        input_ids,
        positions,
        out_cache_loc,
        input_ids if expected_input_tokens is None else expected_input_tokens,
        positions if expected_input_positions is None else expected_input_positions,
        *kernel_sources(sources, device),
        context.enable_chain_position_assert,
        np.int64(int(context.kernel_kind)),
        np.int64(0 if expected_input_tokens is None else FLAG_ASSERT_INPUT),
        context.violation_ring,
        context.violation_write_index,
        context.slot_run_counter,
        context.kernel_run_counter,
        table_of(aggregate_violations, device),
    ]
    return kernel, blocks, threads, arguments


def prepare_write(**kwargs: Any) -> PreparedLaunch:
    """Prepare the launch for the keyword arguments of :func:`write`."""
    kernel, blocks, threads, arguments = _arguments(**kwargs)
    return PreparedLaunch(kernel, blocks, threads, kwargs["context"].canary_buf.device, arguments)


def write(**kwargs: Any) -> None:
    """Run :func:`canary_numba.launch.launch_canary_write_kernel` on CUDA; same keyword arguments."""
    prepare_write(**kwargs)()
