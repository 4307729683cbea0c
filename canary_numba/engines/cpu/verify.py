"""Verify on the CPU: entries in parallel, then the failing ones in plan order, so that the ring is deterministic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import njit, prange

from canary_numba.context import AGGREGATE_NEVER_WRITTEN, ViolationAggregate
from canary_numba.engines.cpu.real_kv import fold_sources
from canary_numba.engines.cpu.ring import append_row, table_of
from canary_numba.layout import FailReason
from canary_numba.mixing import CHAIN_HEAD_HASH, slot_hash_u64
from canary_numba.sources import active_sources

_CHAIN = int(FailReason.VERIFY_CHAIN_HASH_MISMATCH)
_POSITION = int(FailReason.VERIFY_POSITION_MISMATCH)
_REAL_KV = int(FailReason.VERIFY_REAL_KV_HASH_MISMATCH)
_TOKEN = int(FailReason.VERIFY_TOKEN_MISMATCH)
_SLOT_RANGE = int(FailReason.VERIFY_SLOT_OUT_OF_RANGE)
_PREV_RANGE = int(FailReason.VERIFY_PREV_SLOT_OUT_OF_RANGE)

_HASH_ZERO = 0
_HASH_BY_ENTRY = 1
_HASH_BY_SLOT = 2


@njit(cache=True)
def _expected_prev_hash(records: Any, prev: Any, stored_hash: Any):
    if prev < 0:
        return CHAIN_HEAD_HASH
    if prev == 0 or prev >= records.shape[0]:
        return stored_hash
    return slot_hash_u64(np.uint64(records[prev, 2]), np.uint64(records[prev, 0]), np.uint64(records[prev, 1]))


@njit(cache=True)
def _never_written(records: Any, slot: Any):
    return records[slot, 0] == 0 and records[slot, 1] == 0 and records[slot, 2] == 0 and records[slot, 3] == 0


@njit(cache=True)
def _entry_bits(records: Any, slot: Any, prev: Any, token: Any, position: Any, check_token: Any, real_hash: Any):
    num_slots = records.shape[0]
    bits = _PREV_RANGE if prev >= num_slots else 0
    if slot < 0 or slot >= num_slots:
        return bits | _SLOT_RANGE
    stored_hash = np.uint64(records[slot, 2])
    if stored_hash != _expected_prev_hash(records, prev, stored_hash):
        bits |= _CHAIN
    if records[slot, 1] != position:
        bits |= _POSITION
    if np.uint64(records[slot, 3]) != real_hash:
        bits |= _REAL_KV
    if check_token and token != -1 and records[slot, 0] != token:
        bits |= _TOKEN
    return bits


@njit(parallel=True, cache=True)
def _find_failures(
    records: Any,
    slots: Any,
    tokens: Any,
    positions: Any,
    prevs: Any,
    check_token: Any,
    zero_init_okay: Any,
    hashes: Any,
    hash_kind: Any,
    bits_out: Any,
):
    num_slots = records.shape[0]
    never_written = 0
    for i in prange(slots.shape[0]):
        slot = slots[i]
        inside = 0 <= slot < num_slots
        if slot == 0:
            bits_out[i] = 0
        elif zero_init_okay and inside and _never_written(records, slot):
            bits_out[i] = 0
            never_written += 1
        else:
            real_hash = np.uint64(0)
            if hash_kind == _HASH_BY_ENTRY:
                real_hash = hashes[i]
            elif hash_kind == _HASH_BY_SLOT and inside:
                real_hash = hashes[slot]
            bits_out[i] = _entry_bits(records, slot, prevs[i], tokens[i], positions[i], check_token, real_hash)
    return never_written


@njit(cache=True)
def _report(
    records: Any,
    slots: Any,
    tokens: Any,
    prevs: Any,
    check_token: Any,
    bits: Any,
    kind: Any,
    ring: Any,
    write_index: Any,
    aggregate: Any,
):
    for i in range(slots.shape[0]):
        if bits[i] == 0:
            continue
        slot = slots[i]
        expected_token = tokens[i] if check_token else -1
        token = 0
        position = 0
        stored_hash = np.uint64(0)
        if 0 <= slot < records.shape[0]:
            token = records[slot, 0]
            position = records[slot, 1]
            stored_hash = np.uint64(records[slot, 2])
        expected = _expected_prev_hash(records, prevs[i], stored_hash)
        append_row(
            ring,
            write_index,
            aggregate,
            i,
            kind,
            slot,
            position,
            token,
            expected_token,
            stored_hash,
            expected,
            np.int64(bits[i]),
        )


def records_of(canary_buf: torch.Tensor) -> np.ndarray:
    """The buffer as int64 ``[num_slots, stride / 8]``, sharing its memory."""
    return canary_buf.numpy().view(np.int64)


def _expected_real_kv(context: Any, slots: np.ndarray, by_slot: torch.Tensor | None) -> tuple[np.ndarray, int]:
    if by_slot is not None:
        return by_slot.numpy().view(np.uint64), _HASH_BY_SLOT
    sources = active_sources(context)
    if not sources:
        return np.empty(0, dtype=np.uint64), _HASH_ZERO
    hashes = np.zeros(slots.shape[0], dtype=np.uint64)
    fold_sources(sources, slots, hashes)
    return hashes, _HASH_BY_ENTRY


def verify(*, contexts: Sequence[Any], real_kv_hashes: Sequence[torch.Tensor | None], **rest: Any) -> None:
    """Run :func:`canary_numba.launch.launch_canary_verify_kernel` on the CPU."""
    for context, hashes in zip(contexts, real_kv_hashes, strict=True):
        _verify(context, hashes, **rest)


def _verify(
    context: Any,
    real_kv_hashes: torch.Tensor | None,
    *,
    plan: Any,
    check_verify_expected_token: bool,
    aggregate_violations: ViolationAggregate | None,
    zero_init_okay: bool,
) -> None:
    context.kernel_run_counter.numpy()[0] += 1
    if int(plan.enable[0]) == 0:
        return
    active = min(max(int(plan.verify_num_valid[0]), 0), plan.verify_slot_indices.shape[0])
    context.slot_run_counter.numpy()[0] += active
    records = records_of(context.canary_buf)
    slots, tokens, positions, prevs = (
        tensor.numpy()[:active]
        for tensor in (
            plan.verify_slot_indices,
            plan.verify_expected_tokens,
            plan.verify_expected_positions,
            plan.verify_prev_slot_indices,
        )
    )
    hashes, hash_kind = _expected_real_kv(context, slots, real_kv_hashes)
    bits = np.empty(active, dtype=np.uint8)
    check_token = bool(check_verify_expected_token)
    never_written = _find_failures(
        records, slots, tokens, positions, prevs, check_token, bool(zero_init_okay), hashes, hash_kind, bits
    )
    kind = int(context.kernel_kind)
    aggregate = table_of(aggregate_violations)
    if aggregate.shape[0]:
        aggregate[kind, AGGREGATE_NEVER_WRITTEN] += never_written
    if bits.any():
        _report(
            records,
            slots,
            tokens,
            prevs,
            check_token,
            bits,
            kind,
            context.violation_ring.numpy(),
            context.violation_write_index.numpy(),
            aggregate,
        )
