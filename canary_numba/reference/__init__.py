"""The reference engine: plain torch on any device, slow, written apart from the other engines to check them.

The launchers below have the names and keyword arguments of SGLang 0.5.23's reference functions. They check their
arguments as :mod:`canary_numba.launch` does and run its ``engine="reference"``.
"""

from __future__ import annotations

from typing import Any

import torch

from canary_numba import launch
from canary_numba.errors import ArgumentError
from canary_numba.layout import CANARY_CHAIN_ANCHOR
from canary_numba.reference.words import hash_records, mix, signed_word

__all__ = [
    "compute_slot_hash",
    "launch_canary_plan_kernels_torch_reference",
    "launch_canary_verify_kernel_torch_reference",
    "launch_canary_write_kernel_torch_reference",
]


def compute_slot_hash(buf_i64: torch.Tensor, source_slot_idx: int) -> int:
    """Hash the record of one slot: what the next record of its chain stores as PREV_HASH.

    Parameters
    ----------
    buf_i64
        int64 ``[num_slots, stride / 8]``, the canary buffer seen as words.
    source_slot_idx
        The slot; a negative one stands for "no predecessor" and gives the hash that a chain starts with.

    Returns
    -------
    int
        The hash, in ``[0, 2**64)``.

    Raises
    ------
    ArgumentError
        The slot is past the end of the buffer.

    Notes
    -----
    Synchronises when the buffer is on a GPU.
    """
    if source_slot_idx >= buf_i64.shape[0]:
        raise ArgumentError(
            f"source_slot_idx: expected a slot of the buffer (below {buf_i64.shape[0]}), got {source_slot_idx}"
        )
    if source_slot_idx < 0:
        word = mix(torch.tensor([signed_word(CANARY_CHAIN_ANCHOR)]))
    else:
        word = hash_records(buf_i64[source_slot_idx : source_slot_idx + 1])
    return int(word) % 2**64


def launch_canary_verify_kernel_torch_reference(*, context: Any, plan: Any, check_verify_expected_token: bool) -> None:
    """Run :func:`canary_numba.launch.launch_canary_verify_kernel` with the torch reference; raises as it does."""
    launch.launch_canary_verify_kernel(
        context=context, plan=plan, check_verify_expected_token=check_verify_expected_token, engine="reference"
    )


def launch_canary_write_kernel_torch_reference(
    *,
    context: Any,
    plan: Any,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    out_cache_loc: torch.Tensor,
    enable_write_input_assert: bool,
    expected_input_tokens: torch.Tensor | None,
    expected_input_positions: torch.Tensor | None,
) -> None:
    """Run :func:`canary_numba.launch.launch_canary_write_kernel` with the torch reference; raises as it does."""
    launch.launch_canary_write_kernel(
        context=context,
        plan=plan,
        input_ids=input_ids,
        positions=positions,
        out_cache_loc=out_cache_loc,
        enable_write_input_assert=enable_write_input_assert,
        expected_input_tokens=expected_input_tokens,
        expected_input_positions=expected_input_positions,
        engine="reference",
    )


def launch_canary_plan_kernels_torch_reference(
    *,
    verify_plan_out: Any,
    write_plan_out: Any,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    swa_window_size: int,
    full_to_swa_index_mapping: torch.Tensor | None,
    verify_capacity: int,
    req_to_verify_expected_tokens: torch.Tensor | None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None,
    kv_token_id_vs_position_offset: int,
) -> None:
    """Run :func:`canary_numba.launch.launch_canary_plan_kernels` with the torch reference; raises as it does."""
    launch.launch_canary_plan_kernels(
        verify_plan_out=verify_plan_out,
        write_plan_out=write_plan_out,
        req_pool_indices=req_pool_indices,
        prefix_lens=prefix_lens,
        extend_seq_lens=extend_seq_lens,
        req_to_token=req_to_token,
        swa_window_size=swa_window_size,
        full_to_swa_index_mapping=full_to_swa_index_mapping,
        verify_capacity=verify_capacity,
        req_to_verify_expected_tokens=req_to_verify_expected_tokens,
        req_to_verify_expected_tokens_valid_lens=req_to_verify_expected_tokens_valid_lens,
        kv_token_id_vs_position_offset=kv_token_id_vs_position_offset,
        engine="reference",
    )
