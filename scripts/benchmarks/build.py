"""Building a case: pool, table, records and plans on a device, with sound records in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.cases import Case
from canary_numba import (
    CanaryLaunchTag,
    RealKvHashMode,
    RealKvSource,
    VerifyOrWriteContext,
    VerifyPlan,
    ViolationLog,
    WritePlan,
    launch_canary_plan_kernels,
    launch_canary_write_kernel,
)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The tensors of a case on one device."""

    case: Case
    context: VerifyOrWriteContext
    log: ViolationLog
    verify_plan: VerifyPlan
    write_plan: WritePlan
    plan_arguments: dict[str, Any]
    write_arguments: dict[str, Any]


def random_sources(case: Case, num_slots: int, device: torch.device | str) -> tuple[RealKvSource, ...]:
    """Sources of the case's widths over random bytes."""
    rows = -(-num_slots // case.page_size)
    sources = []
    for width in case.row_bytes:
        words = torch.randint(-(2**62), 2**62, (rows * case.page_size * width // 8,), device=device)
        data = words.view(torch.uint8).view(rows, case.page_size * width)
        sources.append(RealKvSource(tensor=data, page_size=case.page_size, num_bytes_per_token=width, read_bytes=width))
    return tuple(sources)


def _flat(case: Case, table: torch.Tensor, begin: int, end: int) -> dict[str, Any]:
    device = table.device
    count = case.requests * (end - begin)
    tokens = (torch.arange(count, device=device) * 7919 + begin) % 32000
    positions = torch.arange(begin, end, device=device).repeat(case.requests)
    slots = table[1 : case.requests + 1, begin:end].reshape(-1).long()
    return {
        "input_ids": tokens,
        "positions": positions,
        "out_cache_loc": slots.contiguous(),
        "enable_write_input_assert": False,
        "expected_input_tokens": None,
        "expected_input_positions": None,
    }


def write_prefix(
    case: Case, contexts: Iterable[VerifyOrWriteContext], write_plan: WritePlan, plan_arguments: dict[str, Any]
) -> None:
    """Write the records of the cached tokens; the plans are overwritten."""
    none = torch.zeros_like(plan_arguments["prefix_lens"])
    first = plan_arguments | {"prefix_lens": none, "extend_seq_lens": plan_arguments["prefix_lens"]}
    launch_canary_plan_kernels(**first)
    flat = _flat(case, plan_arguments["req_to_token"], 0, case.prefix)
    for context in contexts:
        launch_canary_write_kernel(context=context, plan=write_plan, **flat)


def build(case: Case, device: str, seed: int = 0) -> Workload:
    """Allocate a case and, for a prefix, write its records, so that a verify finds nothing wrong."""
    torch.manual_seed(seed)
    length = case.prefix + case.extend
    num_slots = -(-(case.tokens + 1) // case.page_size) * case.page_size
    order = torch.randperm(case.tokens, device=device) if case.scattered else torch.arange(case.tokens, device=device)
    table = torch.zeros((case.requests + 1, length), dtype=torch.int32, device=device)
    table[1:] = (order + 1).to(torch.int32).view(case.requests, length)
    log = ViolationLog.allocate(ring_capacity=1024, device=device)
    context = log.context(
        canary_buf=torch.zeros((num_slots, 32), dtype=torch.uint8, device=device),
        kernel_kind=CanaryLaunchTag.TAIL_K_FULL,
        real_kv_sources=random_sources(case, num_slots, device),
        real_kv_hash_mode=RealKvHashMode[case.mode.upper()],
    )
    rows = torch.arange(1, case.requests + 1, device=device)
    lengths = torch.full((case.requests,), case.prefix, device=device)
    extends = torch.full((case.requests,), case.extend, device=device)
    verify_plan = VerifyPlan.allocate(verify_capacity=max(case.verified, 1), device=device)
    write_plan = WritePlan.allocate(write_req_capacity=case.requests, device=device)
    mapping = torch.arange(num_slots, device=device) if case.window else None
    plan_arguments: dict[str, Any] = {
        "verify_plan_out": verify_plan,
        "write_plan_out": write_plan,
        "req_pool_indices": rows,
        "prefix_lens": lengths,
        "extend_seq_lens": extends,
        "req_to_token": table,
        "swa_window_size": case.window,
        "full_to_swa_index_mapping": mapping,
        "verify_capacity": max(case.verified, 1),
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": None,
        "kv_token_id_vs_position_offset": 0,
    }
    if case.prefix and case.work != "plan":
        write_prefix(case, (context,), write_plan, plan_arguments)
    launch_canary_plan_kernels(**plan_arguments)
    return Workload(
        case=case,
        context=context,
        log=log,
        verify_plan=verify_plan,
        write_plan=write_plan,
        plan_arguments=plan_arguments,
        write_arguments=_flat(case, table, case.prefix, length),
    )
