"""Prepared launches on the CPU: the same as launching, and refused when built."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import harness
import pytest
import torch

from canary_numba import launch
from canary_numba.context import ViolationAggregate, ViolationLog
from canary_numba.engines import simulator_enabled
from canary_numba.errors import ArgumentError, ArgumentTypeError, EngineUnavailableError
from canary_numba.layout import CanaryLaunchTag
from canary_numba.plans import VerifyPlan, WritePlan
from canary_numba.prepared import PreparedPlan, PreparedVerify, PreparedWrite


def arguments() -> dict[str, dict[str, Any]]:
    """Keyword arguments of the three launches for one step: two requests, of 3 and 2 new tokens after 2 and 0."""
    context = ViolationLog.allocate(ring_capacity=8, device="cpu").context(
        canary_buf=torch.zeros((12, 32), dtype=torch.uint8), kernel_kind=CanaryLaunchTag.HEAD_K_FULL
    )
    verify_plan = VerifyPlan.allocate(verify_capacity=6, device="cpu").zero_for_testing_()
    write_plan = WritePlan.allocate(write_req_capacity=2, device="cpu").zero_for_testing_()
    return {
        "plan": {
            "verify_plan_out": verify_plan,
            "write_plan_out": write_plan,
            "req_pool_indices": torch.tensor([1, 2]),
            "prefix_lens": torch.tensor([2, 0]),
            "extend_seq_lens": torch.tensor([3, 2]),
            "req_to_token": torch.tensor([[0] * 5, [4, 7, 1, 9, 3], [2, 8, 0, 0, 0]], dtype=torch.int32),
            "swa_window_size": 0,
            "full_to_swa_index_mapping": None,
            "verify_capacity": 6,
            "req_to_verify_expected_tokens": None,
            "req_to_verify_expected_tokens_valid_lens": None,
            "kv_token_id_vs_position_offset": 0,
        },
        "write": {
            "context": context,
            "plan": write_plan,
            "input_ids": torch.tensor([10, 11, 12, 13, 14]),
            "positions": torch.tensor([2, 3, 4, 0, 1]),
            "out_cache_loc": torch.tensor([1, 9, 3, 2, 8]),
            "enable_write_input_assert": True,
            "expected_input_tokens": torch.tensor([10, 11, 99, 13, 14]),
            "expected_input_positions": torch.tensor([2, 3, 4, 0, 1]),
            "aggregate_violations": ViolationAggregate.allocate(device="cpu"),
        },
        "verify": {
            "context": context,
            "plan": verify_plan,
            "check_verify_expected_token": True,
            "aggregate_violations": ViolationAggregate.allocate(device="cpu"),
        },
    }


PREPARED: dict[str, Any] = {"plan": PreparedPlan, "write": PreparedWrite, "verify": PreparedVerify}
LAUNCHERS: dict[str, Any] = {
    "plan": launch.launch_canary_plan_kernels,
    "write": launch.launch_canary_write_kernel,
    "verify": launch.launch_canary_verify_kernel,
}


def left_by(step: dict[str, dict[str, Any]]) -> list[Any]:
    context, aggregates = step["write"]["context"], [step[name]["aggregate_violations"] for name in ("write", "verify")]
    names = ("canary_buf", "violation_ring", "violation_write_index", "slot_run_counter", "kernel_run_counter")
    plans = [step["plan"][name] for name in ("verify_plan_out", "write_plan_out")]
    return [
        [getattr(context, name).tolist() for name in names],
        [aggregate.table.tolist() for aggregate in aggregates],
        [getattr(plan, field.name).tolist() for plan in plans for field in fields(plan)],
    ]


def test_building_launches_nothing() -> None:
    step = arguments()
    for name, kind in PREPARED.items():
        kind(**step[name])
    assert left_by(step) == left_by(arguments())


@pytest.mark.parametrize("engine", ["auto", "cpu", "reference"])
def test_calls_equal_launches_over_refilled_inputs(engine: str) -> None:
    prepared, launched = arguments(), arguments()
    calls = [PREPARED[name](**prepared[name], engine=engine) for name in PREPARED]
    for repeat in range(3):
        for step in (prepared, launched):
            step["write"]["input_ids"] += 1
            step["plan"]["prefix_lens"][1] = repeat
            step["write"]["context"].canary_buf[7, 0] += 3
        for call in calls:
            call()
        for name, launcher in LAUNCHERS.items():
            launcher(**launched[name], engine=engine)
        assert left_by(prepared) == left_by(launched)
    assert int(prepared["write"]["context"].violation_write_index) > 0
    assert int(prepared["write"]["context"].kernel_run_counter) == 6


@pytest.mark.parametrize(
    ("name", "argument", "value", "error"),
    [
        ("plan", "prefix_lens", torch.zeros(3, dtype=torch.int64), ArgumentError),
        ("plan", "req_to_token", torch.zeros((3, 5)), ArgumentTypeError),
        ("plan", "verify_capacity", 5, ArgumentError),
        ("write", "input_ids", torch.zeros(4, dtype=torch.int64), ArgumentError),
        ("write", "positions", torch.zeros(5), ArgumentTypeError),
        ("write", "expected_input_tokens", None, ArgumentError),
        ("verify", "real_kv_hashes", torch.zeros(11, dtype=torch.int64), ArgumentError),
        ("verify", "real_kv_hashes", torch.zeros(12), ArgumentTypeError),
        *[(name, "engine", "gpu", ArgumentError) for name in PREPARED],
        *[(name, "engine", "cuda", ArgumentError) for name in PREPARED],
    ],
)
def test_refused_when_built(name: str, argument: str, value: Any, error: type[Exception]) -> None:
    step = arguments()
    with pytest.raises(error, match=argument):
        PREPARED[name](**step[name] | {argument: value})
    assert left_by(step) == left_by(arguments())


@pytest.mark.skipif(simulator_enabled(), reason="the simulator is on")
@pytest.mark.parametrize("name", PREPARED)
def test_the_simulator_needs_its_own_process(name: str) -> None:
    with pytest.raises(EngineUnavailableError, match="NUMBA_ENABLE_CUDASIM=1"):
        PREPARED[name](**arguments()[name], engine="simulator")


def test_options_reach_the_launch() -> None:
    step = arguments()
    step["plan"]["prefix_lens"].fill_(2)
    launch.launch_canary_plan_kernels(**step["plan"])
    aggregate = step["verify"]["aggregate_violations"]
    PreparedVerify(**step["verify"], zero_init_okay=True)()
    assert int(aggregate.never_written.sum()) == 4
    hashes = torch.full((12,), 5, dtype=torch.int64)
    before = harness.copy_to("cpu", aggregate.table)
    PreparedVerify(**step["verify"], real_kv_hashes=hashes)()
    assert int((aggregate.counts - before[:, :8])[0, 2]) == 4
