"""Calls that SGLang refuses: with ours in place the error is the same, word for word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from sglang.kernels.ops.kv_canary import plan, scatter_req_token_ids, verify, write
from sglang.kernels.ops.kv_canary.consts import RealKvHashMode
from sglang.test.kernels.kv_canary import _canary_helpers as helpers
from sglang.test.kernels.kv_canary import _fixtures


def _context(device: torch.device, sources: int) -> Any:
    log = helpers.FakeViolationLog.allocate(device=device)
    return verify.VerifyOrWriteContext(
        canary_buf=helpers.make_canary_buf(device=device),
        kernel_kind=verify.CanaryLaunchTag.HEAD_K_FULL,
        violation_ring=log.ring,
        violation_write_index=log.write_index,
        slot_run_counter=log.slot_run_counter,
        kernel_run_counter=log.kernel_run_counter,
        real_kv_sources=_fixtures.make_real_kv_sources(count=sources, device=device),
        real_kv_hash_mode=RealKvHashMode.ALL,
        enable_chain_position_assert=log.enable_chain_position_assert,
    )


def refused_calls(device: torch.device) -> list[tuple[Callable[..., None], dict[str, Any]]]:
    """List launchers, as SGLang's modules hold them now, with arguments that SGLang refuses."""
    one = torch.ones(1, dtype=torch.int64, device=device)
    writing = {
        "context": _context(device, 0),
        "plan": helpers.make_write_plan(write_offsets=[0, 1], seed_slot_indices=[-1], num_valid_reqs=1, device=device),
        "input_ids": one,
        "positions": one,
        "out_cache_loc": one,
        "enable_write_input_assert": False,
        "expected_input_tokens": None,
        "expected_input_positions": None,
    }
    planning = {
        "verify_plan_out": verify.VerifyPlan.allocate(verify_capacity=8, device=device),
        "write_plan_out": write.WritePlan.allocate(write_req_capacity=2, device=device),
        "req_pool_indices": one,
        "prefix_lens": one,
        "extend_seq_lens": one,
        "req_to_token": torch.ones((2, 4), dtype=torch.int32, device=device),
        "swa_window_size": 0,
        "full_to_swa_index_mapping": None,
        "verify_capacity": 8,
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": None,
        "kv_token_id_vs_position_offset": 0,
    }
    scattering = {
        "flat_in": one,
        "offsets": torch.tensor([0, 1], device=device),
        "req_pool_indices": one,
        "pool_out": torch.zeros((2, 4), dtype=torch.int32, device=device),
    }
    verifying = {
        "plan": helpers.make_verify_plan(slot_indices=[1], positions=[0], prev_slot_indices=[-1], device=device),
        "check_verify_expected_token": False,
    }
    many = torch.zeros(512, dtype=torch.int64, device=device)
    five, two_d = _context(device, 5), one[None]
    calls: list[tuple[Callable[..., None], dict[str, Any], dict[str, Any]]] = [
        (verify.launch_canary_verify_kernel, verifying, {"context": five}),
        (write.launch_canary_write_kernel, writing, {"context": five}),
        (write.launch_canary_write_kernel, writing, {"enable_write_input_assert": True}),
        (write.launch_canary_write_kernel, writing, {"expected_input_tokens": one}),
        (plan.launch_canary_plan_kernels, planning, {"swa_window_size": 4}),
        (plan.launch_canary_plan_kernels, planning, {"verify_capacity": 7}),
        (plan.launch_canary_plan_kernels, planning, {"req_to_verify_expected_tokens": planning["req_to_token"]}),
    ]
    if device.type == "cuda":
        crowd = torch.zeros(4097, dtype=torch.int64, device=device)
        calls.append((plan.launch_canary_plan_kernels, planning, {"req_pool_indices": crowd}))
    scatter = scatter_req_token_ids.launch_scatter_req_token_ids_kernel
    changes = [{name: two_d} for name in ("flat_in", "offsets", "req_pool_indices")]
    changes += [{name: one.to(torch.int32)} for name in ("flat_in", "offsets", "req_pool_indices")]
    changes += [{"pool_out": one}, {"pool_out": one[None]}, {"offsets": one}]
    changes += [{"req_pool_indices": many, "offsets": torch.zeros(513, dtype=torch.int64, device=device)}]
    calls += [(scatter, scattering, change) for change in changes]
    return [(launcher, {**arguments, **change}) for launcher, arguments, change in calls]


def _error(launcher: Callable[..., None], arguments: dict[str, Any]) -> tuple[type[Exception], str] | None:
    try:
        launcher(**arguments)
    except Exception as error:
        return type(error), str(error)
    return None


def compare(device: torch.device, counts: Counter[str]) -> None:
    """Make each call with ours in place and with SGLang's launcher behind it, and compare what is raised."""
    for launcher, arguments in refused_calls(device):
        ours, theirs = _error(launcher, arguments), _error(launcher.__wrapped__, arguments)  # type: ignore[attr-defined]
        assert theirs is not None, f"SGLang accepts what it should refuse: {launcher.__name__}"
        assert ours == theirs, f"{launcher.__name__} raises {ours}, SGLang {theirs}"
        counts["refusals"] += 1
