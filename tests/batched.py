"""Several contexts in one launch, against the same contexts one after the other on the reference engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import harness
import torch

from canary_numba import launch
from canary_numba.context import RealKvSource, VerifyOrWriteContext, ViolationAggregate, ViolationLog
from canary_numba.layout import CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan, WritePlan

SLOTS = 300
CHAINS = (140, 90, 1)
SHARED = ("violation_ring", "violation_write_index", "enable_chain_position_assert")
BATCHES = {
    "one": [32],
    "both halves": [32, 32],
    "no sources": [0, 0],
    "partly read": [24, 24],
    "two layouts": [32, 48],
    "two pools": [32, 32, 48, 48],
    "three": [32, 32, 32],
    "unlike neighbours": [32, 48, 32],
}
"""Bytes a slot of each context's source; 0: it has none."""


def contexts_of(widths: Sequence[int], seed: int) -> tuple[VerifyOrWriteContext, ...]:
    """Contexts with one ring, each with its own records, bytes, tag and counters."""
    generator = torch.Generator().manual_seed(seed)
    log = ViolationLog.allocate(ring_capacity=4096, device="cpu")
    log.enable_chain_position_assert.fill_(seed % 2)
    contexts = []
    for i, width in enumerate(widths):
        memory = torch.randint(0, 256, (SLOTS, max(width, 1)), generator=generator, dtype=torch.uint8)
        source = RealKvSource(tensor=memory, page_size=1, num_bytes_per_token=max(width, 1), read_bytes=max(width, 1))
        context = log.context(
            canary_buf=torch.zeros((SLOTS, 32), dtype=torch.uint8),
            kernel_kind=CanaryLaunchTag(i),
            real_kv_sources=(source,) if width else (),
            real_kv_hash_mode=RealKvHashMode.ALL,
        )
        counters = {name: torch.zeros(1, dtype=torch.int64) for name in ("slot_run_counter", "kernel_run_counter")}
        contexts.append(replace(context, **counters))
    return tuple(contexts)


def step_of(seed: int) -> tuple[VerifyPlan, WritePlan, dict[str, Any]]:
    """A write of three chains over scattered slots, a few of them special, and the plan that verifies them."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(SLOTS - 1, generator=generator) + 1
    order, unwritten = order[: sum(CHAINS)], int(order[-1])
    offsets = torch.tensor([0, *CHAINS]).cumsum(0)
    positions = torch.cat([torch.arange(length) for length in CHAINS])
    slots = order.clone()
    if seed % 3 == 1:
        slots[40], slots[100:103] = -1, slots[50]
    if seed % 3 == 2:
        positions[133:] += 5
    inputs = {
        "input_ids": torch.randint(0, 1 << 40, (len(order),), generator=generator),
        "positions": positions,
        "out_cache_loc": slots,
        "enable_write_input_assert": False,
        "expected_input_tokens": None,
        "expected_input_positions": None,
    }
    write_plan = WritePlan(
        write_offsets=offsets,
        write_seed_slot_indices=torch.tensor([-1, unwritten, SLOTS + 7]),
        write_num_valid_reqs=torch.tensor([len(CHAINS)], dtype=torch.int32),
    )
    first = torch.isin(torch.arange(len(order)), offsets)
    verify_plan = VerifyPlan(
        verify_slot_indices=slots,
        verify_expected_tokens=inputs["input_ids"],
        verify_expected_positions=torch.cat([torch.arange(length) for length in CHAINS]),
        verify_prev_slot_indices=torch.where(first, -1, slots.roll(1)),
        verify_num_valid=torch.tensor([len(order)], dtype=torch.int32),
        enable=torch.ones(1, dtype=torch.int32),
    )
    return verify_plan, write_plan, inputs


def copies(device: str, contexts: Sequence[VerifyOrWriteContext]) -> tuple[VerifyOrWriteContext, ...]:
    """Copies that share what the originals share."""
    copied = [harness.copy_to(device, context) for context in contexts]
    shared = {name: getattr(copied[0], name) for name in SHARED}
    return tuple(replace(context, **shared) for context in copied)


def left_by(contexts: Sequence[VerifyOrWriteContext], aggregate: ViolationAggregate) -> dict[str, Any]:
    """Everything that launches leave, ring rows in an order of their own."""
    left: dict[str, Any] = {"rows": sorted(contexts[0].violation_ring.tolist()), "counts": aggregate.table.tolist()}
    for i, context in enumerate(contexts):
        for field in fields(context):
            tensor = getattr(context, field.name)
            if isinstance(tensor, torch.Tensor) and field.name != "violation_ring":
                left[f"{field.name} of {i}"] = tensor.tolist()
    return left


def compare(engine: str, widths: Sequence[int], seed: int, *, one_buffer: bool = False) -> None:
    """Write and verify in one call each on ``engine``, before and after damage, and compare.

    ``one_buffer``: all contexts have the same records, so that the last one's stay.
    """
    verify_plan, write_plan, inputs = step_of(seed)
    device = harness.device_of(engine)
    contexts = contexts_of(widths, seed)
    ours, theirs = copies(device, contexts), copies("cpu", contexts)
    if one_buffer:
        ours, theirs = (
            tuple(replace(context, canary_buf=own[0].canary_buf) for context in own) for own in (ours, theirs)
        )
    aggregates = [ViolationAggregate.allocate(device=where) for where in (device, "cpu")]
    plans = harness.copy_to(device, (verify_plan, write_plan))
    flat = harness.copy_to(device, inputs)
    launch.launch_canary_write_kernel(
        context=ours, plan=plans[1], engine=engine, aggregate_violations=aggregates[0], **flat
    )
    for context in theirs:
        launch.launch_canary_write_kernel(
            context=context, plan=write_plan, engine="reference", aggregate_violations=aggregates[1], **inputs
        )
    assert left_by(ours, aggregates[0]) == left_by(theirs, aggregates[1]), "write"
    for i, pair in enumerate(zip(ours, theirs, strict=True)):
        for context in pair:
            context.canary_buf[int(verify_plan.verify_slot_indices[5 + i]), 3] += 1
            if context.real_kv_sources:
                context.real_kv_sources[0].tensor[int(verify_plan.verify_slot_indices[120 + i])] += 1
    checked = {"check_verify_expected_token": True}
    launch.launch_canary_verify_kernel(
        context=list(ours), plan=plans[0], engine=engine, aggregate_violations=aggregates[0], **checked
    )
    for context in theirs:
        launch.launch_canary_verify_kernel(
            context=context, plan=verify_plan, engine="reference", aggregate_violations=aggregates[1], **checked
        )
    assert left_by(ours, aggregates[0]) == left_by(theirs, aggregates[1]), "verify"
    assert int(theirs[0].violation_write_index) > len(widths)
