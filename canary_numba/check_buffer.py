"""Verifying the records of one buffer of a dump, and naming the plan entry of each violation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from canary_numba.context import ViolationAggregate, ViolationLog
from canary_numba.engine_choice import EngineChoice
from canary_numba.launch import launch_canary_verify_kernel
from canary_numba.layout import REASON_NAMES, CanaryLaunchTag
from canary_numba.plans import VerifyPlan

RING_ROWS = 65536
"""Ring rows tried first; a dump with more violations is verified once more with a ring that holds them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagCheck:
    """One verified buffer.

    ``rows``: int64 ``[n, 8]`` violation rows in order of their plan entries; ``entries``: int64 ``[n]`` those entries;
    ``plan``: what was verified, on the CPU; ``reasons``: failing entries by reason; ``never_written``: entries whose
    record is all zero (counted only with ``zero_init_okay``). ``changed_sources``: by slot, the sources whose bytes
    changed, where the dump's ``source_hashes`` tell.
    """

    tag: CanaryLaunchTag
    plan: VerifyPlan
    rows: torch.Tensor
    entries: torch.Tensor
    num_entries: int
    reasons: dict[str, int]
    never_written: int
    changed_sources: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


def verify_buffer(
    tag: CanaryLaunchTag,
    buf: torch.Tensor,
    plan: VerifyPlan,
    hashes: torch.Tensor | None,
    check_tokens: bool,
    zero_init_okay: bool,
    choice: EngineChoice,
) -> TagCheck:
    """Verify the records of one buffer and say which plan entries fail.

    Parameters
    ----------
    tag
        Which buffer it is.
    buf
        uint8 ``[num_slots, stride]`` on the CPU, its records.
    plan
        What to verify, on the device of ``choice``.
    hashes
        int64 ``[num_slots]`` on that device, the real-KV hash that each record should hold; None = 0.
    check_tokens, zero_init_okay
        As in :func:`~canary_numba.launch.launch_canary_verify_kernel`.
    choice
        Who verifies.
    """
    records = buf.to(choice.device)
    num_entries = int(plan.verify_num_valid)
    capacity = min(num_entries, RING_ROWS)
    while True:
        log = ViolationLog.allocate(ring_capacity=capacity, device=choice.device)
        aggregate = ViolationAggregate.allocate(device=choice.device)
        launch_canary_verify_kernel(
            context=log.context(canary_buf=records, kernel_kind=tag),
            plan=plan,
            check_verify_expected_token=check_tokens,
            engine=choice.name,
            aggregate_violations=aggregate,
            zero_init_okay=zero_init_okay,
            real_kv_hashes=hashes,
        )
        found = int(log.violation_write_index)
        if found <= capacity:
            break
        capacity = found
    rows = log.rows()
    plan_on_cpu = _to_cpu(plan)
    ordered, entries = _in_plan_order(tag, buf, plan_on_cpu, rows, hashes, check_tokens, zero_init_okay)
    counts = aggregate.counts[tag].tolist()
    return TagCheck(
        tag=tag,
        plan=plan_on_cpu,
        rows=ordered,
        entries=entries,
        num_entries=num_entries,
        reasons={name: counts[bit] for bit, name in enumerate(REASON_NAMES.values()) if counts[bit]},
        never_written=int(aggregate.never_written[tag]),
    )


def _to_cpu(plan: VerifyPlan) -> VerifyPlan:
    return VerifyPlan(
        verify_slot_indices=plan.verify_slot_indices.cpu(),
        verify_expected_tokens=plan.verify_expected_tokens.cpu(),
        verify_expected_positions=plan.verify_expected_positions.cpu(),
        verify_prev_slot_indices=plan.verify_prev_slot_indices.cpu(),
        verify_num_valid=plan.verify_num_valid.cpu(),
        enable=plan.enable.cpu(),
    )


def _in_plan_order(
    tag: CanaryLaunchTag,
    buf: torch.Tensor,
    plan: VerifyPlan,
    rows: torch.Tensor,
    hashes: torch.Tensor | None,
    check_tokens: bool,
    zero_init_okay: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sort ring rows by the plan entry that made them, and name it.

    A row does not say which entry it comes from, and a shared slot has several. So the entries of the failing slots
    are verified once more by the torch reference, which knows; that it finds the same rows is a check of the engine.
    """
    from canary_numba.reference.verify import find_failures

    count = int(plan.verify_num_valid)
    if rows.shape[0] == 0:
        return rows, torch.empty(0, dtype=torch.int64)
    candidates = torch.isin(plan.verify_slot_indices[:count], rows[:, 1]).nonzero()[:, 0]
    few = VerifyPlan(
        verify_slot_indices=plan.verify_slot_indices[candidates],
        verify_expected_tokens=plan.verify_expected_tokens[candidates],
        verify_expected_positions=plan.verify_expected_positions[candidates],
        verify_prev_slot_indices=plan.verify_prev_slot_indices[candidates],
        verify_num_valid=torch.tensor([candidates.shape[0]], dtype=torch.int32),
        enable=plan.enable,
    )
    log = ViolationLog.allocate(ring_capacity=0, device="cpu")
    again, failing, _ = find_failures(
        context=log.context(canary_buf=buf, kernel_kind=tag),
        plan=few,
        active=candidates.shape[0],
        check_verify_expected_token=check_tokens,
        zero_init_okay=zero_init_okay,
        real_kv_hashes=None if hashes is None else hashes.cpu(),
    )
    if not torch.equal(_sorted(again), _sorted(rows)):
        raise RuntimeError(f"{tag.name}: the engine's violation rows differ from the torch reference's")
    return again, candidates[failing]


def _sorted(rows: torch.Tensor) -> torch.Tensor:
    """Rows int64 ``[n, 8]`` by their first field, then their second, and so on."""
    return rows[np.lexsort(rows.numpy().T[::-1])]
