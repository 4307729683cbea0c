"""The one place that checks tensors before a launch: kernels trust what passed here."""

from __future__ import annotations

from typing import Any

import torch

from canary_numba.context import AGGREGATE_FIELDS
from canary_numba.errors import ArgumentError
from canary_numba.layout import (
    CANARY_SLOT_BYTES,
    MAX_REAL_KV_SOURCES,
    NUM_LAUNCH_TAGS,
    VIOLATION_FIELDS,
    RealKvHashMode,
)
from canary_numba.tensor_checks import device_of, require_rows, require_tensor


def check_context(context: Any) -> None:
    """Check every field of a :class:`~canary_numba.context.VerifyOrWriteContext` or its SGLang twin."""
    buf = context.canary_buf
    device = device_of("canary_buf", buf)
    require_tensor("canary_buf", buf, dtype=torch.uint8, shape=(None, None), device=device)
    stride = buf.shape[1]
    if stride < CANARY_SLOT_BYTES or stride % 8:
        raise ArgumentError(
            f"canary_buf: expected a slot stride of at least {CANARY_SLOT_BYTES} bytes and a multiple of 8, "
            f"got {stride}"
        )
    if buf.data_ptr() % 8:
        raise ArgumentError(f"canary_buf: expected an 8-byte aligned address, got {buf.data_ptr():#x}")
    if int(context.kernel_kind) not in range(NUM_LAUNCH_TAGS):
        raise ArgumentError(f"kernel_kind: expected a CanaryLaunchTag (0 to 11), got {context.kernel_kind}")
    require_tensor(
        "violation_ring", context.violation_ring, dtype=torch.int64, shape=(None, VIOLATION_FIELDS), device=device
    )
    for name, dtype in (
        ("violation_write_index", torch.int32),
        ("slot_run_counter", torch.int64),
        ("kernel_run_counter", torch.int64),
        ("enable_chain_position_assert", torch.int32),
    ):
        require_tensor(name, getattr(context, name), dtype=dtype, shape=(1,), device=device)
    if int(context.real_kv_hash_mode) not in tuple(RealKvHashMode):
        raise ArgumentError(f"real_kv_hash_mode: expected a RealKvHashMode (0 to 2), got {context.real_kv_hash_mode}")
    _check_sources(context.real_kv_sources, num_slots=buf.shape[0], device=device)


def _check_sources(sources: Any, *, num_slots: int, device: torch.device) -> None:
    if len(sources) > MAX_REAL_KV_SOURCES:
        raise ArgumentError(
            f"real_kv_sources: expected at most {MAX_REAL_KV_SOURCES} sources in one launch, got {len(sources)}"
        )
    for i, source in enumerate(sources):
        name = f"real_kv_sources[{i}].tensor"
        if device_of(name, source.tensor) != device:
            raise ArgumentError(f"{name}: expected a tensor on {device}, as the others are, got {source.tensor.device}")
        slots = source.tensor.shape[0] * source.page_size
        if slots < num_slots:
            raise ArgumentError(f"{name}: expected bytes for all {num_slots} slots of canary_buf, got {slots} slots")


def check_verify_plan(plan: Any, device: torch.device) -> None:
    """Check a :class:`~canary_numba.plans.VerifyPlan` or its SGLang twin."""
    slots = plan.verify_slot_indices
    require_tensor("plan.verify_slot_indices", slots, dtype=torch.int64, shape=(None,), device=device)
    capacity = slots.shape[0]
    for name in (
        "verify_expected_tokens",
        "verify_expected_positions",
        "verify_prev_slot_indices",
    ):
        require_tensor(f"plan.{name}", getattr(plan, name), dtype=torch.int64, shape=(capacity,), device=device)
    for name in ("verify_num_valid", "enable"):
        require_tensor(f"plan.{name}", getattr(plan, name), dtype=torch.int32, shape=(1,), device=device)


def check_write_plan(plan: Any, device: torch.device) -> None:
    """Check a :class:`~canary_numba.plans.WritePlan` or its SGLang twin."""
    seeds = plan.write_seed_slot_indices
    require_tensor("plan.write_seed_slot_indices", seeds, dtype=torch.int64, shape=(None,), device=device)
    require_tensor(
        "plan.write_offsets", plan.write_offsets, dtype=torch.int64, shape=(seeds.shape[0] + 1,), device=device
    )
    require_tensor("plan.write_num_valid_reqs", plan.write_num_valid_reqs, dtype=torch.int32, shape=(1,), device=device)


def batch_of(context: Any) -> tuple[Any, ...]:
    """The contexts of a launch: one, or a list or tuple of them.

    Raises
    ------
    ArgumentError
        The list is empty.
    """
    if not isinstance(context, (list, tuple)):
        return (context,)
    if not context:
        raise ArgumentError("context: expected a context or several, got an empty list")
    return tuple(context)


def _check_contexts(contexts: Any) -> torch.device:
    for context in contexts:
        check_context(context)
    device: torch.device = contexts[0].canary_buf.device
    for i, context in enumerate(contexts):
        if context.canary_buf.device != device:
            raise ArgumentError(f"context[{i}]: expected tensors on {device}, got them on {context.canary_buf.device}")
    return device


def check_verify(
    *,
    contexts: Any,
    plan: Any,
    check_verify_expected_token: bool,
    aggregate_violations: Any,
    zero_init_okay: bool,
    real_kv_hashes: Any,
) -> None:
    """Check every argument of :func:`~canary_numba.launch.launch_canary_verify_kernel`; both flags take anything."""
    device = _check_contexts(contexts)
    check_verify_plan(plan, device)
    check_aggregate(aggregate_violations, device)
    if len(real_kv_hashes) != len(contexts):
        raise ArgumentError(
            f"real_kv_hashes: expected one for each of {len(contexts)} contexts, got {len(real_kv_hashes)}"
        )
    for context, hashes in zip(contexts, real_kv_hashes, strict=True):
        if hashes is not None:
            num_slots = context.canary_buf.shape[0]
            require_tensor("real_kv_hashes", hashes, dtype=torch.int64, shape=(num_slots,), device=device)


def check_write(*, contexts: Any, plan: Any, aggregate_violations: Any, **flat: Any) -> None:
    """Check every argument of :func:`~canary_numba.launch.launch_canary_write_kernel`."""
    device = _check_contexts(contexts)
    check_write_plan(plan, device)
    check_aggregate(aggregate_violations, device)
    check_write_inputs(**flat, device=device)


def check_write_inputs(
    *,
    input_ids: Any,
    positions: Any,
    out_cache_loc: Any,
    enable_write_input_assert: bool,
    expected_input_tokens: Any,
    expected_input_positions: Any,
    device: torch.device,
) -> None:
    """Check the flat token arrays of a write: int64 or int32, one length; expected ones exactly with the assert on."""
    given = (expected_input_tokens is not None, expected_input_positions is not None)
    if enable_write_input_assert and not all(given):
        raise ArgumentError(
            "expected_input_tokens, expected_input_positions: both are needed with enable_write_input_assert=True"
        )
    if not enable_write_input_assert and any(given):
        raise ArgumentError(
            "expected_input_tokens, expected_input_positions: expected None with enable_write_input_assert=False"
        )
    arrays = {"out_cache_loc": out_cache_loc, "input_ids": input_ids, "positions": positions}
    if enable_write_input_assert:
        arrays["expected_input_tokens"] = expected_input_tokens
        arrays["expected_input_positions"] = expected_input_positions
    length: int | None = None
    for name, tensor in arrays.items():
        require_tensor(name, tensor, dtype=(torch.int64, torch.int32), shape=(length,), device=device)
        length = tensor.shape[0]


def check_aggregate(aggregate: Any, device: torch.device) -> None:
    """Check the table of a :class:`~canary_numba.context.ViolationAggregate`; None is fine."""
    if aggregate is not None:
        require_tensor(
            "aggregate_violations.table",
            aggregate.table,
            dtype=torch.int64,
            shape=(NUM_LAUNCH_TAGS, AGGREGATE_FIELDS),
            device=device,
        )


def check_plan_inputs(
    *,
    verify_plan_out: Any,
    write_plan_out: Any,
    req_pool_indices: Any,
    prefix_lens: Any,
    extend_seq_lens: Any,
    req_to_token: Any,
    swa_window_size: int,
    full_to_swa_index_mapping: Any,
    verify_capacity: int,
    req_to_verify_expected_tokens: Any,
    req_to_verify_expected_tokens_valid_lens: Any,
    kv_token_id_vs_position_offset: int,
) -> None:
    """Check every argument of :func:`~canary_numba.launch.launch_canary_plan_kernels`."""
    if swa_window_size < 0:
        raise ArgumentError(f"swa_window_size: expected >= 0, got {swa_window_size}")
    if swa_window_size > 0 and full_to_swa_index_mapping is None:
        raise ArgumentError(
            f"full_to_swa_index_mapping: needed with swa_window_size={swa_window_size}, since window slots are "
            "numbered apart from full slots; got None"
        )
    if kv_token_id_vs_position_offset not in (0, 1):
        raise ArgumentError(f"kv_token_id_vs_position_offset: expected 0 or 1, got {kv_token_id_vs_position_offset}")
    device = device_of("verify_plan_out.verify_slot_indices", verify_plan_out.verify_slot_indices)
    check_verify_plan(verify_plan_out, device)
    check_write_plan(write_plan_out, device)
    capacity = verify_plan_out.verify_slot_indices.shape[0]
    if verify_capacity != capacity:
        raise ArgumentError(
            f"verify_capacity: expected {capacity}, the length of verify_plan_out's arrays, got {verify_capacity}"
        )
    require_tensor("req_pool_indices", req_pool_indices, dtype=torch.int64, shape=(None,), device=device)
    bs = req_pool_indices.shape[0]
    require_tensor("prefix_lens", prefix_lens, dtype=torch.int64, shape=(bs,), device=device)
    require_tensor("extend_seq_lens", extend_seq_lens, dtype=torch.int64, shape=(bs,), device=device)
    req_capacity = write_plan_out.write_seed_slot_indices.shape[0]
    if bs > req_capacity:
        raise ArgumentError(f"req_pool_indices: expected at most {req_capacity} requests, the write plan's, got {bs}")
    require_rows("req_to_token", req_to_token, device)
    if full_to_swa_index_mapping is not None:
        require_tensor(
            "full_to_swa_index_mapping", full_to_swa_index_mapping, dtype=torch.int64, shape=(None,), device=device
        )
    if req_to_verify_expected_tokens is not None:
        if req_to_verify_expected_tokens_valid_lens is None:
            raise ArgumentError(
                "req_to_verify_expected_tokens_valid_lens: needed with req_to_verify_expected_tokens, since only the "
                "leading tokens of a pool row belong to its request; got None"
            )
        require_rows("req_to_verify_expected_tokens", req_to_verify_expected_tokens, device)
        require_tensor(
            "req_to_verify_expected_tokens_valid_lens",
            req_to_verify_expected_tokens_valid_lens,
            dtype=torch.int64,
            shape=(bs,),
            device=device,
        )


def check_scatter_inputs(*, flat_in: Any, offsets: Any, req_pool_indices: Any, pool_out: Any) -> None:
    """Check every argument of :func:`~canary_numba.launch.launch_scatter_req_token_ids_kernel`."""
    device = device_of("pool_out", pool_out)
    require_rows("pool_out", pool_out, device)
    require_tensor("flat_in", flat_in, dtype=torch.int64, shape=(None,), device=device)
    require_tensor("req_pool_indices", req_pool_indices, dtype=torch.int64, shape=(None,), device=device)
    require_tensor("offsets", offsets, dtype=torch.int64, shape=(req_pool_indices.shape[0] + 1,), device=device)


def check_hash_inputs(*, real_kv_sources: Any, real_kv_hash_mode: Any, slot_indices: Any, hashes_out: Any) -> None:
    """Check every argument of :func:`~canary_numba.launch.launch_real_kv_hash_kernel`."""
    device = device_of("hashes_out", hashes_out)
    require_tensor("hashes_out", hashes_out, dtype=torch.int64, shape=(None,), device=device)
    require_tensor("slot_indices", slot_indices, dtype=torch.int64, shape=(hashes_out.shape[0],), device=device)
    if int(real_kv_hash_mode) not in (RealKvHashMode.PARTIAL, RealKvHashMode.ALL):
        raise ArgumentError(f"real_kv_hash_mode: expected PARTIAL or ALL, got {real_kv_hash_mode!r}")
    if not real_kv_sources:
        raise ArgumentError("real_kv_sources: expected at least one source, got none")
    _check_sources(real_kv_sources, num_slots=0, device=device)
