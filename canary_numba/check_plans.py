"""What a dump asks to be verified: the plan of its requests and the plan of its prefix cache, per pool kind."""

from __future__ import annotations

import torch

from canary_numba.dump.model import Dump, Group, Radix, Requests
from canary_numba.errors import DumpError
from canary_numba.launch import launch_canary_plan_kernels
from canary_numba.layout import REQ_POOL_IDX_PADDING, SLOT_OUT_OF_RANGE
from canary_numba.plans import VerifyPlan, WritePlan

MAX_ENTRIES = 2**31 - 1
"""A plan counts its entries in an int32."""


def entries_per_request(requests: Requests, window: int) -> torch.Tensor:
    """Verify entries that each request contributes, int64 ``[bs]``: exactly as many as the plan kernels make."""
    width = requests.req_to_token.shape[1]
    prefix = requests.prefix_lens.clamp(0, width + 1)
    prefix = torch.where(requests.req_pool_indices == REQ_POOL_IDX_PADDING, 0, prefix)
    return prefix.clamp(max=window) if window > 0 else prefix


def plan_requests(dump: Dump, group: Group, *, engine: str, device: torch.device) -> VerifyPlan:
    """Plan the verification of every cached token of every live request, in the slot numbers of ``group``.

    Raises
    ------
    DumpError
        The lengths add up to more entries than a plan can count.
    """
    requests = dump.requests
    assert requests is not None
    total = int(entries_per_request(requests, group.swa_window_size).sum())
    if total > MAX_ENTRIES:
        raise DumpError(
            f"requests.prefix_lens: expected at most {MAX_ENTRIES} cached tokens in all, got {total}", path=dump.path
        )
    bs = requests.req_pool_indices.shape[0]
    plan = VerifyPlan.allocate(verify_capacity=max(total, 1), device=device)
    mapping = group.full_to_swa_index_mapping
    tokens, valid_lens = requests.expected_tokens, requests.expected_tokens_valid_lens
    launch_canary_plan_kernels(
        verify_plan_out=plan,
        write_plan_out=WritePlan.allocate(write_req_capacity=max(bs, 1), device=device),
        req_pool_indices=requests.req_pool_indices.to(device),
        prefix_lens=requests.prefix_lens.to(device),
        extend_seq_lens=requests.extend_seq_lens.to(device),
        req_to_token=requests.req_to_token.to(device),
        swa_window_size=group.swa_window_size,
        full_to_swa_index_mapping=None if mapping is None else mapping.to(device),
        verify_capacity=max(total, 1),
        req_to_verify_expected_tokens=None if tokens is None else tokens.to(device),
        req_to_verify_expected_tokens_valid_lens=None if valid_lens is None else valid_lens.to(device),
        kv_token_id_vs_position_offset=group.kv_token_id_vs_position_offset,
        engine=engine,
    )
    return plan


def map_slots(slots: torch.Tensor, mapping: torch.Tensor | None) -> torch.Tensor:
    """FULL slots int64 ``[n]`` in a group's own numbers: negatives stay, those outside the mapping are out of range."""
    if mapping is None:
        return slots
    padded = torch.cat([mapping, mapping.new_tensor([SLOT_OUT_OF_RANGE])])
    mapped = padded[slots.clamp(0, mapping.shape[0])]
    return torch.where(slots < 0, slots, mapped)


def plan_radix(radix: Radix, group: Group, *, device: torch.device) -> VerifyPlan:
    """Plan the verification of everything the prefix cache holds, in the slot numbers of ``group``; no tokens."""
    count = radix.slot_indices.shape[0]
    plan = VerifyPlan.allocate(verify_capacity=max(count, 1), device=device)
    mapping = group.full_to_swa_index_mapping
    plan.verify_slot_indices[:count] = map_slots(radix.slot_indices, mapping).to(device)
    plan.verify_prev_slot_indices[:count] = map_slots(radix.prev_slot_indices, mapping).to(device)
    plan.verify_expected_positions[:count] = radix.positions.to(device)
    plan.verify_expected_tokens.fill_(-1)
    plan.verify_num_valid.fill_(count)
    return plan
