"""The verify kernel: a warp takes 32 plan entries at a time, one entry a lane, over a grid-stride loop.

Bytes moved per entry: 32 of plan (coalesced), 32 of record, and ``read_bytes`` of each K/V source (see
:mod:`canary_numba.engines.cuda.fold`). In a plan in order an entry's predecessor is the entry of the lane before, so
its record is handed over through shared memory and read from global memory only where it is not.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numba import uint64

from canary_numba.context import AGGREGATE_NEVER_WRITTEN, ViolationAggregate
from canary_numba.engines.cuda.device import (
    WARP,
    cuda,
    cuda_kernel,
    multiprocessors,
    slot_hash,
    warp_sync,
)
from canary_numba.engines.cuda.fold import (
    FOLD_CARVEOUT,
    SourceShape,
    block_threads,
    kernel_sources,
    make_real_kv_fold,
    warp_tile_words,
)
from canary_numba.engines.cuda.launcher import PreparedLaunch
from canary_numba.engines.cuda.records import make_read_record, record_words, records_are_paired
from canary_numba.engines.cuda.ring import append_row, table_of
from canary_numba.layout import FailReason
from canary_numba.mixing import CHAIN_HEAD_HASH
from canary_numba.sources import active_sources

_CHAIN = int(FailReason.VERIFY_CHAIN_HASH_MISMATCH)
_POSITION = int(FailReason.VERIFY_POSITION_MISMATCH)
_REAL_KV = int(FailReason.VERIFY_REAL_KV_HASH_MISMATCH)
_TOKEN = int(FailReason.VERIFY_TOKEN_MISMATCH)
_SLOT_RANGE = int(FailReason.VERIFY_SLOT_OUT_OF_RANGE)
_PREV_RANGE = int(FailReason.VERIFY_PREV_SLOT_OUT_OF_RANGE)

FLAG_CHECK_TOKEN = 1
FLAG_ZERO_INIT_OKAY = 2
FLAG_HASH_BY_SLOT = 4

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_THREE = np.uint64(3)
_LANES = np.uint64(WARP)


@lru_cache(maxsize=256)
def make_verify_kernel(shapes: tuple[SourceShape, ...], paired: bool) -> Any:
    """Build the verify kernel for sources of these shapes and for paired records or not."""
    real_kv_fold = make_real_kv_fold(shapes)
    read_record = make_read_record(paired)
    has_sources = len(shapes) > 0
    threads = block_threads(shapes)
    warp_words = max(warp_tile_words(shapes), 4 * WARP)
    tile_words = threads // WARP * warp_words

    @cuda_kernel(carveout=FOLD_CARVEOUT if warp_tile_words(shapes) else None)
    def canary_verify_kernel(
        records: Any,
        stride: Any,
        num_slots: Any,
        plan_slots: Any,
        plan_tokens: Any,
        plan_positions: Any,
        plan_prevs: Any,
        num_valid: Any,
        enable: Any,
        src0: Any,
        src1: Any,
        src2: Any,
        src3: Any,
        slot_hashes: Any,
        kind: Any,
        flags: Any,
        ring: Any,
        write_index: Any,
        slot_run: Any,
        kernel_run: Any,
        aggregate: Any,
    ) -> None:
        tile = cuda.shared.array(tile_words, uint64)
        rows = cuda.shared.array(threads, uint64)

        thread = np.uint64(cuda.threadIdx.x)
        lane = thread % _LANES
        warp = thread // _LANES
        # Records are handed over where the warp's tile was, which is free once it is folded.
        near = warp * np.uint64(warp_words) + lane
        first = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        active = np.int64(0)
        if enable[0] != 0:
            active = min(max(np.int64(num_valid[0]), np.int64(0)), np.int64(plan_slots.shape[0]))
        if first == 0:
            cuda.atomic.add(kernel_run, 0, 1)
            cuda.atomic.add(slot_run, 0, active)

        # Of the 32 entries of this warp: all lanes stay in the loop together, since they fold together.
        group = np.int64(first) - np.int64(lane)
        step = np.int64(cuda.gridDim.x) * np.int64(cuda.blockDim.x)
        while group < active:
            entry = group + np.int64(lane)
            slot = np.int64(0)
            if entry < active:
                slot = plan_slots[entry]
            inside = 0 <= slot < num_slots
            real_hash = _ZERO
            if has_sources:
                safe = np.uint64(slot) if inside else _ZERO
                real_hash = real_kv_fold(real_hash, src0, src1, src2, src3, safe, tile, rows, warp, lane)
            elif (flags & FLAG_HASH_BY_SLOT) != 0 and inside:
                real_hash = np.uint64(slot_hashes[slot])

            # Read after the fold, whose registers they would take away.
            prev = np.int64(0)
            if entry < active:
                prev = plan_prevs[entry]
            token = _ZERO
            position = _ZERO
            stored_hash = _ZERO
            stored_real = _ZERO
            if inside and slot != 0:
                token, position, stored_hash, stored_real = read_record(records, np.uint64(slot) * stride)
            tile[near] = np.uint64(slot)
            tile[near + _LANES] = token
            tile[near + _TWO * _LANES] = position
            tile[near + _THREE * _LANES] = stored_hash
            warp_sync()

            if slot != 0:
                never = (token | position | stored_hash | stored_real) == _ZERO
                if inside and never and (flags & FLAG_ZERO_INIT_OKAY) != 0:
                    if aggregate.shape[0] > 0:
                        cuda.atomic.add(aggregate, (kind, AGGREGATE_NEVER_WRITTEN), 1)
                else:
                    bits = 0
                    expected = stored_hash
                    if prev < 0:
                        expected = CHAIN_HEAD_HASH
                    elif prev >= num_slots:
                        bits |= _PREV_RANGE
                    elif prev > 0:
                        before = near - _ONE
                        if lane > _ZERO and np.int64(tile[before]) == prev:
                            expected = slot_hash(
                                tile[before + _THREE * _LANES], tile[before + _LANES], tile[before + _TWO * _LANES]
                            )
                        else:
                            p_token, p_position, p_hash, _ = read_record(records, np.uint64(prev) * stride)
                            expected = slot_hash(p_hash, p_token, p_position)
                    expected_token = np.int64(-1)
                    if (flags & FLAG_CHECK_TOKEN) != 0:
                        expected_token = plan_tokens[entry]
                    if not inside:
                        bits |= _SLOT_RANGE
                    else:
                        if stored_hash != expected:
                            bits |= _CHAIN
                        if np.int64(position) != plan_positions[entry]:
                            bits |= _POSITION
                        if stored_real != real_hash:
                            bits |= _REAL_KV
                        if expected_token != -1 and np.int64(token) != expected_token:
                            bits |= _TOKEN
                    if bits != 0:
                        append_row(
                            ring,
                            write_index,
                            aggregate,
                            entry,
                            kind,
                            slot,
                            np.int64(position),
                            np.int64(token),
                            expected_token,
                            stored_hash,
                            expected,
                            bits,
                        )
            warp_sync()
            group += step

    return canary_verify_kernel


def _arguments(
    *,
    context: Any,
    plan: Any,
    check_verify_expected_token: bool,
    aggregate_violations: ViolationAggregate | None,
    zero_init_okay: bool,
    real_kv_hashes: torch.Tensor | None,
) -> tuple[Any, int, int, list[Any]]:
    """Choose kernel, blocks, threads and arguments of a verify launch."""
    buf = context.canary_buf
    device = buf.device
    sources = active_sources(context) if real_kv_hashes is None and buf.shape[0] > 0 else []
    shapes = tuple(SourceShape.of(s) for s in sources)
    threads = block_threads(shapes)
    kernel = make_verify_kernel(shapes, records_are_paired(buf))
    flags = FLAG_CHECK_TOKEN if check_verify_expected_token else 0
    flags |= FLAG_ZERO_INIT_OKAY if zero_init_okay else 0
    flags |= FLAG_HASH_BY_SLOT if real_kv_hashes is not None else 0
    capacity = plan.verify_slot_indices.shape[0]
    blocks = max(1, min(-(-capacity // threads), multiprocessors(device) * 16384 // threads))
    arguments = [
        record_words(buf),
        np.uint64(buf.shape[1] // 8),
        np.int64(buf.shape[0]),
        plan.verify_slot_indices,
        plan.verify_expected_tokens,
        plan.verify_expected_positions,
        plan.verify_prev_slot_indices,
        plan.verify_num_valid,
        plan.enable,
        *kernel_sources(sources, device),
        torch.empty(0, dtype=torch.int64, device=device) if real_kv_hashes is None else real_kv_hashes,
        np.int64(int(context.kernel_kind)),
        np.int64(flags),
        context.violation_ring,
        context.violation_write_index,
        context.slot_run_counter,
        context.kernel_run_counter,
        table_of(aggregate_violations, device),
    ]
    return kernel, blocks, threads, arguments


def prepare_verify(**kwargs: Any) -> PreparedLaunch:
    """Prepare the launch for the keyword arguments of :func:`verify`."""
    kernel, blocks, threads, arguments = _arguments(**kwargs)
    return PreparedLaunch(kernel, blocks, threads, kwargs["context"].canary_buf.device, arguments)


def verify(**kwargs: Any) -> None:
    """Run :func:`canary_numba.launch.launch_canary_verify_kernel` on CUDA; same keyword arguments."""
    prepare_verify(**kwargs)()
