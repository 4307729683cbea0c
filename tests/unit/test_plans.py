"""VerifyPlan and WritePlan: fields, sizes, neutral values."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from canary_numba import CanaryError
from canary_numba.plans import VerifyPlan, WritePlan


def fields(plan: Any) -> dict[str, tuple[torch.dtype, list[int]]]:
    return {f.name: (getattr(plan, f.name).dtype, list(getattr(plan, f.name).shape)) for f in dataclasses.fields(plan)}


def test_verify_plan_fields() -> None:
    assert fields(VerifyPlan.allocate(verify_capacity=5, device="cpu")) == {
        "verify_slot_indices": (torch.int64, [5]),
        "verify_expected_tokens": (torch.int64, [5]),
        "verify_expected_positions": (torch.int64, [5]),
        "verify_prev_slot_indices": (torch.int64, [5]),
        "verify_num_valid": (torch.int32, [1]),
        "enable": (torch.int32, [1]),
    }


def test_write_plan_fields() -> None:
    assert fields(WritePlan.allocate(write_req_capacity=5, device="cpu")) == {
        "write_offsets": (torch.int64, [6]),
        "write_seed_slot_indices": (torch.int64, [5]),
        "write_num_valid_reqs": (torch.int32, [1]),
    }


def test_a_new_plan_verifies_and_writes_nothing() -> None:
    verify_plan = VerifyPlan.allocate(verify_capacity=5, device="cpu")
    assert (int(verify_plan.verify_num_valid), int(verify_plan.enable)) == (0, 1)
    assert int(WritePlan.allocate(write_req_capacity=5, device="cpu").write_num_valid_reqs) == 0


@pytest.mark.parametrize("capacity", [1, 7, 4096])
def test_allocation_bytes(capacity: int) -> None:
    verify_plan = VerifyPlan.allocate(verify_capacity=capacity, device="cpu")
    write_plan = WritePlan.allocate(write_req_capacity=capacity, device="cpu")

    def held(plan: Any) -> int:
        return sum(getattr(plan, f.name).nbytes for f in dataclasses.fields(plan))

    assert VerifyPlan.allocation_bytes(capacity) == held(verify_plan)
    assert WritePlan.allocation_bytes(capacity) == held(write_plan)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_must_be_positive(capacity: int) -> None:
    message = f": expected a positive capacity, got {capacity}$"
    with pytest.raises(ValueError, match="^verify_capacity" + message) as verify_error:
        VerifyPlan.allocate(verify_capacity=capacity, device="cpu")
    with pytest.raises(ValueError, match="^write_req_capacity" + message):
        WritePlan.allocate(write_req_capacity=capacity, device="cpu")
    assert isinstance(verify_error.value, CanaryError)


def test_zero_for_testing() -> None:
    verify_plan = VerifyPlan.allocate(verify_capacity=3, device="cpu")
    assert verify_plan.zero_for_testing_() is verify_plan
    assert verify_plan.verify_expected_tokens.tolist() == [-1, -1, -1]
    for name in ("verify_slot_indices", "verify_expected_positions", "verify_prev_slot_indices"):
        assert getattr(verify_plan, name).tolist() == [0, 0, 0]
    assert (int(verify_plan.verify_num_valid), int(verify_plan.enable)) == (0, 0)
    write_plan = WritePlan.allocate(write_req_capacity=3, device="cpu")
    assert write_plan.zero_for_testing_() is write_plan
    assert write_plan.write_offsets.tolist() == [0, 0, 0, 0]
    assert write_plan.write_seed_slot_indices.tolist() == [0, 0, 0]
    assert int(write_plan.write_num_valid_reqs) == 0


def test_plans_are_frozen() -> None:
    plan = VerifyPlan.allocate(verify_capacity=1, device="cpu")
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.enable = torch.zeros(1)  # type: ignore[misc]
