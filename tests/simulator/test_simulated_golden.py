"""Every golden file of a single launch in the simulator."""

from __future__ import annotations

from pathlib import Path

import golden
import harness
import pytest
import torch
from golden import Golden

from canary_numba.context import VerifyOrWriteContext


def load(shared: Path, name: str) -> Golden:
    data = golden.load(shared, name)
    if not data.get("cuda_defined", 1):
        pytest.skip("only defined for the reference")
    return data


def check_log(data: Golden, before: VerifyOrWriteContext, after: VerifyOrWriteContext) -> None:
    for name in ("violation_write_index", "slot_run_counter", "kernel_run_counter"):
        assert torch.equal(getattr(after, name), data[f"out_{name}"]), name
    harness.check_ring(before, after, [tuple(row) for row in data["out_all_rows"].tolist()])


@pytest.mark.parametrize("name", golden.golden_names("verify_"))
def test_verify(name: str, engine: str, shared: Path) -> None:
    data = load(shared, name)
    context = golden.context_of(data)
    check_token = bool(data["check_verify_expected_token"])
    after = harness.run_verify(engine, context, golden.verify_plan_of(data), check_token=check_token).context
    check_log(data, context, after)
    assert torch.equal(after.canary_buf, data["in_canary_buf"])


@pytest.mark.parametrize("name", golden.golden_names("write_"))
def test_write(name: str, engine: str, shared: Path) -> None:
    data = load(shared, name)
    context = golden.context_of(data)
    after = harness.run_write(engine, context, golden.write_plan_of(data), golden.write_inputs_of(data)).context
    check_log(data, context, after)
    assert torch.equal(after.canary_buf, data["out_canary_buf"])


@pytest.mark.parametrize("name", golden.golden_names("plan_"))
def test_plan(name: str, engine: str, shared: Path) -> None:
    data = load(shared, name)
    verify_plan, write_plan = harness.run_plan(
        engine, golden.plan_inputs_of(data), write_req_capacity=data["write_req_capacity"]
    )
    for field in ("verify_num_valid", "enable"):
        assert torch.equal(getattr(verify_plan, field), data[f"out_{field}"]), field
    defined = int(data["out_verify_num_valid"]) if int(data["out_enable"]) else 0
    for field in golden.VERIFY_ENTRIES:
        assert torch.equal(getattr(verify_plan, field)[:defined], data[f"out_{field}"][:defined]), field
    assert torch.equal(write_plan.write_offsets, data["out_write_offsets"])
    count = data["bs"]
    seeds = write_plan.write_seed_slot_indices[:count]
    assert torch.equal(seeds, data["out_write_seed_slot_indices"][:count])
    assert int(write_plan.write_num_valid_reqs) == count
