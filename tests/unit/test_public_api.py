"""The public surface: names, what importing costs, and the drop-in signatures."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from typing import Any

import pytest

import canary_numba

VERIFY = ["context", "plan", "check_verify_expected_token"]
WRITE = [
    "context",
    "plan",
    "input_ids",
    "positions",
    "out_cache_loc",
    "enable_write_input_assert",
    "expected_input_tokens",
    "expected_input_positions",
]
PLAN = [
    "verify_plan_out",
    "write_plan_out",
    "req_pool_indices",
    "prefix_lens",
    "extend_seq_lens",
    "req_to_token",
    "swa_window_size",
    "full_to_swa_index_mapping",
    "verify_capacity",
    "req_to_verify_expected_tokens",
    "req_to_verify_expected_tokens_valid_lens",
    "kv_token_id_vs_position_offset",
]


def run_python(code: str) -> Any:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_all_is_sorted_and_complete() -> None:
    assert canary_numba.__all__ == sorted(canary_numba.__all__)
    assert set(canary_numba.__all__) == {*canary_numba._MODULE_OF, "__version__"}
    assert dir(canary_numba) == canary_numba.__all__


@pytest.mark.parametrize("name", canary_numba.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    value = getattr(canary_numba, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__name__ == name
        assert value.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'canary_numba' has no attribute 'verfy'$"):
        canary_numba.verfy  # noqa: B018


def test_importing_loads_neither_torch_nor_numba() -> None:
    code = "import json, sys, canary_numba; print(json.dumps(sorted(sys.modules)))"
    assert not {"torch", "numba", "numpy"} & set(run_python(code))


def test_the_reference_runs_without_numba() -> None:
    code = """
import json, sys
import torch
from canary_numba import ViolationLog, CanaryLaunchTag, VerifyPlan, launch_canary_verify_kernel_torch_reference
log = ViolationLog.allocate(ring_capacity=1, device="cpu")
context = log.context(canary_buf=torch.zeros((2, 32), dtype=torch.uint8), kernel_kind=CanaryLaunchTag.HEAD_K_FULL)
plan = VerifyPlan.allocate(verify_capacity=1, device="cpu")
launch_canary_verify_kernel_torch_reference(context=context, plan=plan, check_verify_expected_token=True)
print(json.dumps([int(log.kernel_run_counter), [m for m in sys.modules if m.split(".")[0] == "numba"]]))
"""
    assert run_python(code) == [1, []]


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("launch_canary_verify_kernel", VERIFY),
        ("launch_canary_write_kernel", WRITE),
        ("launch_canary_plan_kernels", PLAN),
        ("launch_scatter_req_token_ids_kernel", ["flat_in", "offsets", "req_pool_indices", "pool_out"]),
    ],
)
def test_launchers_take_the_drop_in_keywords_and_only_optional_ones_beside(name: str, names: list[str]) -> None:
    parameters = inspect.signature(getattr(canary_numba, name)).parameters
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters.values())
    assert [n for n, p in parameters.items() if p.default is inspect.Parameter.empty] == names


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("launch_canary_verify_kernel_torch_reference", VERIFY),
        ("launch_canary_write_kernel_torch_reference", WRITE),
        ("launch_canary_plan_kernels_torch_reference", PLAN),
        ("compute_slot_hash", ["buf_i64", "source_slot_idx"]),
    ],
)
def test_references_take_exactly_the_drop_in_arguments(name: str, names: list[str]) -> None:
    assert list(inspect.signature(getattr(canary_numba, name)).parameters) == names
