"""Arguments that every launcher accepts, ways to spoil them, and the refusal that must follow."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from canary_numba import launch
from canary_numba.context import RealKvSource, VerifyOrWriteContext, ViolationLog
from canary_numba.errors import ArgumentTypeError, CanaryError
from canary_numba.layout import CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan, WritePlan

I32, I64, U8 = torch.int32, torch.int64, torch.uint8
Change = Callable[[dict[str, Any]], None]


def zeros(*shape: int, dtype: torch.dtype = I64, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def source(rows: int = 4, **changes: Any) -> RealKvSource:
    tensor = zeros(rows, 8, dtype=U8)
    return RealKvSource(**{"tensor": tensor, "page_size": 1, "num_bytes_per_token": 8, "read_bytes": 8, **changes})


def make_context() -> VerifyOrWriteContext:
    return ViolationLog.allocate(ring_capacity=2, device="cpu").context(
        canary_buf=zeros(4, 32, dtype=U8),
        kernel_kind=CanaryLaunchTag.HEAD_K_FULL,
        real_kv_sources=(source(),),
        real_kv_hash_mode=RealKvHashMode.ALL,
    )


def verify_arguments() -> dict[str, Any]:
    plan = VerifyPlan.allocate(verify_capacity=3, device="cpu").zero_for_testing_()
    return {"context": make_context(), "plan": plan, "check_verify_expected_token": True}


def write_arguments() -> dict[str, Any]:
    return {
        "context": make_context(),
        "plan": WritePlan.allocate(write_req_capacity=2, device="cpu").zero_for_testing_(),
        "input_ids": zeros(5),
        "positions": zeros(5),
        "out_cache_loc": zeros(5),
        "enable_write_input_assert": True,
        "expected_input_tokens": zeros(5),
        "expected_input_positions": zeros(5),
    }


def plan_arguments() -> dict[str, Any]:
    return {
        "verify_plan_out": VerifyPlan.allocate(verify_capacity=3, device="cpu"),
        "write_plan_out": WritePlan.allocate(write_req_capacity=2, device="cpu"),
        "req_pool_indices": zeros(2),
        "prefix_lens": zeros(2),
        "extend_seq_lens": zeros(2),
        "req_to_token": zeros(3, 4, dtype=I32),
        "swa_window_size": 0,
        "full_to_swa_index_mapping": zeros(6),
        "verify_capacity": 3,
        "req_to_verify_expected_tokens": zeros(3, 4, dtype=I32),
        "req_to_verify_expected_tokens_valid_lens": zeros(2),
        "kv_token_id_vs_position_offset": 0,
    }


def scatter_arguments() -> dict[str, Any]:
    return {
        "flat_in": zeros(5),
        "offsets": zeros(3),
        "req_pool_indices": zeros(2),
        "pool_out": zeros(3, 4, dtype=I32),
    }


def hash_arguments() -> dict[str, Any]:
    return {
        "real_kv_sources": (source(),),
        "real_kv_hash_mode": RealKvHashMode.ALL,
        "slot_indices": zeros(2),
        "hashes_out": zeros(2),
    }


LAUNCHERS: dict[str, tuple[Callable[..., None], Callable[[], dict[str, Any]]]] = {
    "verify": (launch.launch_canary_verify_kernel, verify_arguments),
    "write": (launch.launch_canary_write_kernel, write_arguments),
    "plan": (launch.launch_canary_plan_kernels, plan_arguments),
    "scatter": (launch.launch_scatter_req_token_ids_kernel, scatter_arguments),
    "hash": (launch.launch_real_kv_hash_kernel, hash_arguments),
}


def given(**changes: Any) -> Change:
    """Replace arguments."""
    return lambda arguments: arguments.update(changes)


def within(argument: str, **changes: Any) -> Change:
    """Replace fields of an argument that is a dataclass."""

    def change(arguments: dict[str, Any]) -> None:
        arguments[argument] = replace(arguments[argument], **changes)

    return change


def refusal(launcher: str, change: Change, error: type[CanaryError], message: str) -> dict[str, Any]:
    run, arguments_of = LAUNCHERS[launcher]
    arguments = arguments_of()
    change(arguments)
    with pytest.raises(error, match="^" + re.escape(message)) as caught:
        run(**arguments, engine="reference")
    assert isinstance(caught.value, TypeError if error is ArgumentTypeError else ValueError)
    return arguments
