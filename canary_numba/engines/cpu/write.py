"""Write on the CPU: K/V hashes of all tokens first, then requests in parallel, each along its chain.

Requests of one launch never share a slot, so they can run in any order; what they found wrong is reported afterwards
in the order of the flat arrays, so that the ring is deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import njit, prange

from canary_numba.context import ViolationAggregate
from canary_numba.engines.cpu.real_kv import fold_sources
from canary_numba.engines.cpu.ring import append_row, table_of
from canary_numba.engines.cpu.verify import records_of
from canary_numba.layout import FailReason
from canary_numba.mixing import CHAIN_HEAD_HASH, slot_hash_u64
from canary_numba.sources import active_sources

_WRITE_TOKEN = int(FailReason.WRITE_TOKEN_MISMATCH)
_WRITE_POSITION = int(FailReason.WRITE_POSITION_MISMATCH)
_SLOT_RANGE = int(FailReason.VERIFY_SLOT_OUT_OF_RANGE)
_PREV_RANGE = int(FailReason.VERIFY_PREV_SLOT_OUT_OF_RANGE)


@njit(cache=True)
def clamp_range(offsets: Any, request: Any, num_tokens: Any):
    """The flat range of ``request``, cut to the arrays: (begin, end), begin <= end."""
    begin = min(max(offsets[request], 0), num_tokens)
    end = min(max(offsets[request + 1], 0), num_tokens)
    return begin, max(begin, end)


@njit(parallel=True, cache=True)
def _write_chains(
    records: Any,
    offsets: Any,
    seeds: Any,
    num_reqs: Any,
    tokens: Any,
    positions: Any,
    slots: Any,
    expected_tokens: Any,
    expected_positions: Any,
    assert_input: Any,
    assert_chain: Any,
    hashes: Any,
    input_bits: Any,
    chain_expected: Any,
    chain_failed: Any,
    running: Any,
):
    num_slots = records.shape[0]
    written = 0
    for r in prange(num_reqs):
        begin, end = clamp_range(offsets, r, slots.shape[0])
        seed = seeds[r]
        chained = 0 <= seed < num_slots
        h = CHAIN_HEAD_HASH
        last_position = np.int64(0)
        if chained:
            h = slot_hash_u64(np.uint64(records[seed, 2]), np.uint64(records[seed, 0]), np.uint64(records[seed, 1]))
            last_position = records[seed, 1]
        for i in range(begin, end):
            slot = slots[i]
            if slot < 0:
                continue
            written += 1
            token = np.int64(tokens[i])
            position = np.int64(positions[i])
            running[i] = h
            if assert_input:
                if token != expected_tokens[i]:
                    input_bits[i] |= _WRITE_TOKEN
                if position != expected_positions[i]:
                    input_bits[i] |= _WRITE_POSITION
            if slot >= num_slots:
                input_bits[i] |= _SLOT_RANGE
                continue
            if chained and assert_chain:
                chain_expected[i] = last_position + 1
                chain_failed[i] = position != last_position + 1
            records[slot, 0] = token
            records[slot, 1] = position
            records[slot, 2] = np.int64(h)
            records[slot, 3] = np.int64(hashes[i]) if hashes.shape[0] > 0 else np.int64(0)
            h = slot_hash_u64(h, np.uint64(token), np.uint64(position))
            last_position = position
    return written


@njit(cache=True)
def _report(
    num_slots: Any,
    offsets: Any,
    seeds: Any,
    num_reqs: Any,
    tokens: Any,
    positions: Any,
    slots: Any,
    expected_tokens: Any,
    expected_positions: Any,
    assert_input: Any,
    input_bits: Any,
    chain_expected: Any,
    chain_failed: Any,
    running: Any,
    kind: Any,
    ring: Any,
    write_index: Any,
    aggregate: Any,
):
    for r in range(num_reqs):
        begin, end = clamp_range(offsets, r, slots.shape[0])
        if seeds[r] >= num_slots and begin < end:
            append_row(
                ring,
                write_index,
                aggregate,
                begin,
                kind,
                seeds[r],
                0,
                0,
                -1,
                np.uint64(0),
                CHAIN_HEAD_HASH,
                np.int64(_PREV_RANGE),
            )
        for i in range(begin, end):
            token = np.int64(tokens[i])
            position = np.int64(positions[i])
            if input_bits[i]:
                expected_token = np.int64(expected_tokens[i]) if assert_input else token
                expected_position = np.int64(expected_positions[i]) if assert_input else position
                append_row(
                    ring,
                    write_index,
                    aggregate,
                    i,
                    kind,
                    slots[i],
                    position,
                    token,
                    expected_token,
                    running[i],
                    np.uint64(expected_position),
                    np.int64(input_bits[i]),
                )
            if chain_failed[i]:
                append_row(
                    ring,
                    write_index,
                    aggregate,
                    i,
                    kind,
                    slots[i],
                    position,
                    token,
                    token,
                    running[i],
                    np.uint64(chain_expected[i]),
                    np.int64(_WRITE_POSITION),
                )


def write(*, contexts: Sequence[Any], **rest: Any) -> None:
    """Run :func:`canary_numba.launch.launch_canary_write_kernel` on the CPU."""
    for context in contexts:
        _write(context, **rest)


def _write(
    context: Any,
    *,
    plan: Any,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    out_cache_loc: torch.Tensor,
    enable_write_input_assert: bool,
    expected_input_tokens: torch.Tensor | None,
    expected_input_positions: torch.Tensor | None,
    aggregate_violations: ViolationAggregate | None,
) -> None:
    context.kernel_run_counter.numpy()[0] += 1
    tokens, place, slots = (t.numpy() for t in (input_ids, positions, out_cache_loc))
    slots = slots.astype(np.int64, copy=False)
    expected_tokens = expected_input_tokens.numpy() if expected_input_tokens is not None else tokens
    expected_positions = expected_input_positions.numpy() if expected_input_positions is not None else place
    seeds = plan.write_seed_slot_indices.numpy()
    offsets = plan.write_offsets.numpy()
    num_reqs = min(max(int(plan.write_num_valid_reqs[0]), 0), seeds.shape[0])
    records = records_of(context.canary_buf)
    sources = active_sources(context)
    hashes = np.zeros(slots.shape[0] if sources else 0, dtype=np.uint64)
    if sources:
        fold_sources(sources, slots, hashes)
    input_bits = np.zeros(slots.shape[0], dtype=np.uint8)
    chain_expected = np.zeros(slots.shape[0], dtype=np.int64)
    chain_failed = np.zeros(slots.shape[0], dtype=np.bool_)
    running = np.zeros(slots.shape[0], dtype=np.uint64)
    assert_chain = int(context.enable_chain_position_assert[0]) != 0
    written = _write_chains(
        records,
        offsets,
        seeds,
        num_reqs,
        tokens,
        place,
        slots,
        expected_tokens,
        expected_positions,
        bool(enable_write_input_assert),
        assert_chain,
        hashes,
        input_bits,
        chain_expected,
        chain_failed,
        running,
    )
    context.slot_run_counter.numpy()[0] += written
    if input_bits.any() or chain_failed.any() or (seeds[:num_reqs] >= records.shape[0]).any():
        _report(
            records.shape[0],
            offsets,
            seeds,
            num_reqs,
            tokens,
            place,
            slots,
            expected_tokens,
            expected_positions,
            bool(enable_write_input_assert),
            input_bits,
            chain_expected,
            chain_failed,
            running,
            int(context.kernel_kind),
            context.violation_ring.numpy(),
            context.violation_write_index.numpy(),
            table_of(aggregate_violations),
        )
