"""Launches through SGLang's names run on ours; what SGLang refuses is refused in its own words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from sglang_launchers import PLAN, SCATTER, VERIFY, WRITE, Theirs, launcher, stand_in

from canary_numba.context import RealKvSource, ViolationLog
from canary_numba.integrations import sglang
from canary_numba.layout import CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan, WritePlan


@pytest.fixture(autouse=True)
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Theirs]:
    for theirs in stand_in(monkeypatch):
        sglang.install()
        yield theirs


def plan_arguments(bs: int = 2, dtype: torch.dtype = torch.int64, **changed: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "verify_plan_out": VerifyPlan.allocate(verify_capacity=16, device="cpu"),
        "write_plan_out": WritePlan.allocate(write_req_capacity=bs, device="cpu"),
        "req_pool_indices": torch.arange(1, bs + 1, dtype=dtype),
        "prefix_lens": torch.full((bs,), 3, dtype=dtype),
        "extend_seq_lens": torch.ones(bs, dtype=dtype),
        "req_to_token": torch.arange(1, 1 + (bs + 1) * 8, dtype=torch.int32).view(bs + 1, 8),
        "swa_window_size": 0,
        "full_to_swa_index_mapping": None,
        "verify_capacity": 16,
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": None,
        "kv_token_id_vs_position_offset": 0,
    }
    return {**arguments, **changed}


def context(sources: int = 0) -> Any:
    memory = torch.zeros((32, 16), dtype=torch.uint8)
    source = RealKvSource(tensor=memory, page_size=1, num_bytes_per_token=16, read_bytes=16)
    return ViolationLog.allocate(ring_capacity=4, device="cpu").context(
        canary_buf=torch.zeros((32, 32), dtype=torch.uint8),
        kernel_kind=CanaryLaunchTag.HEAD_K_FULL,
        real_kv_sources=(source,) * sources,
        real_kv_hash_mode=RealKvHashMode.ALL if sources else RealKvHashMode.NONE,
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_step_runs_on_ours(theirs: Theirs, dtype: torch.dtype) -> None:
    arguments = plan_arguments(dtype=dtype)
    launcher(PLAN)(**arguments)
    verify_plan, write_plan = arguments["verify_plan_out"], arguments["write_plan_out"]
    assert verify_plan.verify_slot_indices[:6].tolist() == [9, 10, 11, 17, 18, 19]
    where = context(sources=2)
    flat = {"input_ids": [7, 8], "positions": [3, 3], "out_cache_loc": [12, 20]}
    launcher(WRITE)(
        context=where,
        plan=write_plan,
        enable_write_input_assert=True,
        expected_input_tokens=torch.tensor([7, 8], dtype=dtype),
        expected_input_positions=torch.tensor([3, 4], dtype=dtype),
        **{name: torch.tensor(values, dtype=dtype) for name, values in flat.items()},
    )
    assert where.canary_buf.view(torch.int64)[[12, 20], :2].tolist() == [[7, 3], [8, 3]]
    assert int(where.violation_write_index) == 1
    launcher(VERIFY)(context=where, plan=verify_plan, check_verify_expected_token=False)
    assert (int(where.kernel_run_counter), int(where.slot_run_counter)) == (2, 8)
    assert theirs.ran == []


def test_scatter_runs_on_ours(theirs: Theirs) -> None:
    pool = torch.zeros((3, 4), dtype=torch.int32)
    offsets, rows = torch.tensor([0, 2, 3]), torch.tensor([2, 1])
    launcher(SCATTER)(flat_in=torch.tensor([5, 6, 7]), offsets=offsets, req_pool_indices=rows, pool_out=pool)
    assert pool.tolist() == [[0] * 4, [7, 0, 0, 0], [5, 6, 0, 0]]
    assert theirs.ran == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (VERIFY, lambda: {"context": context(5), "plan": None, "check_verify_expected_token": False}),
        (PLAN, lambda: plan_arguments(swa_window_size=4)),
        (PLAN, lambda: plan_arguments(verify_capacity=15)),
        (SCATTER, lambda: dict.fromkeys(("flat_in", "offsets", "req_pool_indices", "pool_out"))),
    ],
)
def test_what_sglang_refuses_it_refuses_in_its_own_words(
    theirs: Theirs, name: str, arguments: Callable[[], dict[str, Any]]
) -> None:
    theirs.refuse = "kv-canary: SGLang says no"
    with pytest.raises(ValueError, match=r"^kv-canary: SGLang says no$") as caught:
        launcher(name)(**arguments())
    assert caught.value.__context__ is None


def test_its_limit_of_scattered_requests_stays(theirs: Theirs) -> None:
    theirs.refuse = "kv-canary: too many"
    for bs in (sglang.SCATTER_REQUESTS, sglang.SCATTER_REQUESTS + 1):
        arguments = {
            "flat_in": torch.arange(bs),
            "offsets": torch.arange(bs + 1),
            "req_pool_indices": torch.arange(bs),
            "pool_out": torch.zeros((bs, 1), dtype=torch.int32),
        }
        if bs == sglang.SCATTER_REQUESTS:
            launcher(SCATTER)(**arguments)
            assert arguments["pool_out"].flatten().tolist() == list(range(bs))
        else:
            with pytest.raises(ValueError, match="too many"):
                launcher(SCATTER)(**arguments)


def test_its_limit_of_planned_requests_is_the_gpus(theirs: Theirs) -> None:
    bs = sglang.PLAN_REQUESTS + 1
    arguments = plan_arguments(bs, prefix_lens=torch.zeros(bs, dtype=torch.int64))
    launcher(PLAN)(**arguments)
    assert int(arguments["write_plan_out"].write_num_valid_reqs) == bs
    assert theirs.ran == []


def test_what_only_sglang_takes_runs_on_its_own_kernel_with_one_warning(
    theirs: Theirs, caplog: pytest.LogCaptureFixture
) -> None:
    wide = torch.zeros((3, 8), dtype=torch.int64)
    for _ in range(2):
        launcher(PLAN)(**plan_arguments(req_to_token=wide))
    assert theirs.ran == [PLAN, PLAN]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"{PLAN}: SGLang's own kernel ran")
    assert "req_to_token: expected torch.int32, got torch.int64" in record.getMessage()


def test_a_missing_argument_is_an_error_of_the_call(theirs: Theirs) -> None:
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'plan'"):
        launcher(VERIFY)(context=context(), check_verify_expected_token=False)
    assert theirs.ran == []
