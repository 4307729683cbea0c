"""Verify in torch: all entries of the plan at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from canary_numba.context import ViolationAggregate
from canary_numba.layout import (
    CANARY_FIELD_POSITION,
    CANARY_FIELD_PREV_HASH,
    CANARY_FIELD_REAL_KV_HASH,
    CANARY_FIELD_TOKEN,
    TOKEN_TO_KV_SLOT_PADDING,
    FailReason,
)
from canary_numba.reference.real_kv import hashes_of_slots
from canary_numba.reference.ring import build_rows, count_never_written, report
from canary_numba.reference.words import CHAIN_HEAD_WORD, gather, hash_records, read_records, records_of, within

_NO_TOKEN = -1


def _expected_prev_hash(records: torch.Tensor, prevs: torch.Tensor, stored_hash: torch.Tensor) -> torch.Tensor:
    """What each record should hold as PREV_HASH; what it does hold where the predecessor cannot tell."""
    readable = within(prevs, records.shape[0]) & (prevs != TOKEN_TO_KV_SLOT_PADDING)
    expected = torch.where(readable, hash_records(read_records(records, prevs)), stored_hash)
    return torch.where(prevs < 0, CHAIN_HEAD_WORD, expected)


def find_failures(
    *,
    context: Any,
    plan: Any,
    active: int,
    check_verify_expected_token: bool,
    zero_init_okay: bool,
    real_kv_hashes: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Find what fails among the first ``active`` entries of a plan, without reporting it.

    Returns
    -------
    tuple of torch.Tensor
        Violation rows int64 ``[n, 8]``, the plan entry of each (int64 ``[n]``, ascending), and which entries were
        never written (bool ``[active]``, all false without ``zero_init_okay``).
    """
    slots = plan.verify_slot_indices[:active]
    prevs = plan.verify_prev_slot_indices[:active]
    tokens = plan.verify_expected_tokens[:active]
    if not check_verify_expected_token:
        tokens = torch.full_like(tokens, _NO_TOKEN)

    records = records_of(context.canary_buf)
    inside = within(slots, records.shape[0])
    stored = read_records(records, slots)
    stored_hash = stored[:, CANARY_FIELD_PREV_HASH]
    expected_hash = _expected_prev_hash(records, prevs, stored_hash)
    if real_kv_hashes is None:
        expected_real_kv = hashes_of_slots(context, slots)
    else:
        expected_real_kv = gather(real_kv_hashes, slots, 0)

    failures = {
        FailReason.VERIFY_CHAIN_HASH_MISMATCH: inside & (stored_hash != expected_hash),
        FailReason.VERIFY_POSITION_MISMATCH: inside
        & (stored[:, CANARY_FIELD_POSITION] != plan.verify_expected_positions[:active]),
        FailReason.VERIFY_REAL_KV_HASH_MISMATCH: inside & (stored[:, CANARY_FIELD_REAL_KV_HASH] != expected_real_kv),
        FailReason.VERIFY_TOKEN_MISMATCH: inside & (tokens != _NO_TOKEN) & (stored[:, CANARY_FIELD_TOKEN] != tokens),
        FailReason.VERIFY_SLOT_OUT_OF_RANGE: ~inside,
        FailReason.VERIFY_PREV_SLOT_OUT_OF_RANGE: prevs >= records.shape[0],
    }
    bits = torch.zeros_like(slots)
    for reason, failed in failures.items():
        bits += int(reason) * failed

    padding = slots == TOKEN_TO_KV_SLOT_PADDING
    bits[padding] = 0
    never_written = inside & ~padding & (stored == 0).all(dim=1) & zero_init_okay
    bits[never_written] = 0

    rows = build_rows(
        context,
        slot=slots,
        position=stored[:, CANARY_FIELD_POSITION],
        stored_token=stored[:, CANARY_FIELD_TOKEN],
        expected_token=tokens,
        stored_hash=stored_hash,
        expected_aux=expected_hash,
        bits=bits,
    )
    failing = bits.nonzero()[:, 0]
    return rows[failing], failing, never_written


def verify(*, contexts: Sequence[Any], real_kv_hashes: Sequence[torch.Tensor | None], **rest: Any) -> None:
    """Run :func:`canary_numba.launch.launch_canary_verify_kernel` in torch."""
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
    context.kernel_run_counter.add_(1)
    if int(plan.enable) == 0:
        return
    active = min(max(int(plan.verify_num_valid), 0), plan.verify_slot_indices.shape[0])
    context.slot_run_counter.add_(active)
    rows, failing, never_written = find_failures(
        context=context,
        plan=plan,
        active=active,
        check_verify_expected_token=check_verify_expected_token,
        zero_init_okay=zero_init_okay,
        real_kv_hashes=real_kv_hashes,
    )
    if zero_init_okay:
        count_never_written(context, never_written, aggregate_violations)
    report(context, rows, failing, aggregate_violations)
