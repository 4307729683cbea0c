"""The verify kernel: a warp takes 32 plan entries at a time, one entry a lane, over a grid-stride loop.

Bytes moved per entry: 32 of plan (coalesced), 32 of record, and ``read_bytes`` of each K/V source (see
:mod:`canary_numba.engines.cuda.fold`). In a plan in order an entry's predecessor is the entry of the lane before, so
its record is handed over through shared memory and read from global memory only where it is not. A launch serves one
context or two (see :mod:`canary_numba.engines.cuda.batch`); two read the plan from memory once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numba import uint64

from canary_numba.context import AGGREGATE_NEVER_WRITTEN, ViolationAggregate
from canary_numba.engines.cuda.batch import BatchArguments, Operand, in_batches, make_picks, operand_of
from canary_numba.engines.cuda.bundles import Log
from canary_numba.engines.cuda.device import (
    WARP,
    cuda,
    cuda_kernel,
    multiprocessors,
    slot_hash,
    warp_sync,
)
from canary_numba.engines.cuda.fold import make_real_kv_fold
from canary_numba.engines.cuda.fold_shapes import FOLD_CARVEOUT, SourceShape, block_threads, warp_tile_words
from canary_numba.engines.cuda.launcher import PreparedLaunch
from canary_numba.engines.cuda.records import make_read_record
from canary_numba.engines.cuda.ring import append_row, table_of
from canary_numba.layout import FailReason
from canary_numba.mixing import CHAIN_HEAD_HASH

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
def make_verify_kernel(shapes: tuple[SourceShape, ...], paired: bool, count: int) -> Any:
    """Build the verify kernel for ``count`` contexts with sources of these shapes, for paired records or not."""
    pick, pick_number = make_picks(count)
    real_kv_fold = make_real_kv_fold(shapes)
    read_record = make_read_record(paired)
    has_sources = len(shapes) > 0
    threads = block_threads(shapes)
    warp_words = max(warp_tile_words(shapes), 4 * WARP)
    tile_words = threads // WARP * warp_words

    @cuda_kernel(carveout=FOLD_CARVEOUT if warp_tile_words(shapes) else None)
    def canary_verify_kernel(
        all_records: Any,
        stride: Any,
        num_slots: Any,
        plan_slots: Any,
        plan_tokens: Any,
        plan_positions: Any,
        plan_prevs: Any,
        num_valid: Any,
        enable: Any,
        all_src0: Any,
        all_src1: Any,
        all_src2: Any,
        all_src3: Any,
        all_hashes: Any,
        kinds: Any,
        flags: Any,
        ring: Any,
        write_index: Any,
        slot_runs: Any,
        kernel_runs: Any,
        aggregate: Any,
    ) -> None:
        records = pick(all_records)
        src0, src1, src2, src3 = pick(all_src0), pick(all_src1), pick(all_src2), pick(all_src3)
        kind = pick_number(kinds)
        tile = cuda.shared.array(tile_words, uint64)
        rows = cuda.shared.array(threads, uint64)

        thread = np.uint64(cuda.threadIdx.x)
        lane = thread % _LANES
        warp = thread // _LANES
        # Records are handed over where the warp's tile was, which is free once it is folded.
        near = warp * np.uint64(warp_words) + lane
        first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        active = np.int64(0)
        if enable[0] != 0:
            active = min(max(np.int64(num_valid[0]), np.int64(0)), np.int64(plan_slots.shape[0]))
        if first == 0:
            cuda.atomic.add(pick(kernel_runs), 0, 1)
            cuda.atomic.add(pick(slot_runs), 0, active)

        # Of the 32 entries of this warp: all lanes stay in the loop together, since they fold together.
        group = np.int64(first) - np.int64(lane)
        step = np.int64(cuda.gridDim.y) * np.int64(cuda.blockDim.x)
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
                real_hash = np.uint64(pick(all_hashes)[slot])

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
                            Log(kind, ring, write_index, aggregate),
                            entry,
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


def _launch(
    batch: list[Operand],
    *,
    plan: Any,
    check_verify_expected_token: bool,
    aggregate_violations: ViolationAggregate | None,
    zero_init_okay: bool,
) -> PreparedLaunch:
    layout, context = batch[0].layout, batch[0].context
    device = context.canary_buf.device
    threads = block_threads(layout.shapes)
    flags = FLAG_CHECK_TOKEN if check_verify_expected_token else 0
    flags |= FLAG_ZERO_INIT_OKAY if zero_init_okay else 0
    flags |= FLAG_HASH_BY_SLOT if batch[0].hashes.shape[0] > 0 else 0
    capacity = plan.verify_slot_indices.shape[0]
    blocks = max(1, min(-(-capacity // threads), multiprocessors(device) * 16384 // threads))
    own = BatchArguments.of(batch)
    arguments = [
        own.records,
        np.uint64(layout.stride),
        np.int64(layout.num_slots),
        plan.verify_slot_indices,
        plan.verify_expected_tokens,
        plan.verify_expected_positions,
        plan.verify_prev_slot_indices,
        plan.verify_num_valid,
        plan.enable,
        *own.sources,
        own.hashes,
        own.kinds,
        np.int64(flags),
        context.violation_ring,
        context.violation_write_index,
        own.slot_runs,
        own.kernel_runs,
        table_of(aggregate_violations, device),
    ]
    kernel = make_verify_kernel(layout.shapes, layout.paired, len(batch))
    return PreparedLaunch(kernel, (len(batch), blocks), threads, device, arguments)


def prepare_verify(
    *, contexts: Sequence[Any], real_kv_hashes: Sequence[torch.Tensor | None], **rest: Any
) -> list[PreparedLaunch]:
    """Prepare the launches for the arguments of :func:`canary_numba.launch.launch_canary_verify_kernel`."""
    pairs = zip(contexts, real_kv_hashes, strict=True)
    operands = [operand_of(context, hashes=hashes) for context, hashes in pairs]
    return [_launch(batch, **rest) for batch in in_batches(operands)]
