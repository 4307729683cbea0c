"""Launching again without preparing: the second launch like one before skips checks and packing, and nothing else."""

from __future__ import annotations

from typing import Any

import batched
import harness
import pytest
import torch

from canary_numba import launch
from canary_numba.context import ViolationAggregate
from canary_numba.errors import ArgumentError, ArgumentTypeError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]


def state(contexts: Any) -> dict[str, Any]:
    return batched.left_by(contexts, ViolationAggregate.allocate(device="cpu"))


def write(contexts: Any, plan: Any, inputs: dict[str, Any]) -> None:
    launch.launch_canary_write_kernel(context=contexts, plan=plan, **inputs)


def verify(contexts: Any, plan: Any) -> None:
    launch.launch_canary_verify_kernel(context=contexts, plan=plan, check_verify_expected_token=True)


class Both:
    """The same step on a GPU and on the CPU, whose flat inputs come anew."""

    def __init__(self) -> None:
        contexts = batched.contexts_of([32, 32], 0)
        self.plans = batched.step_of(0)[:2]
        self.there, self.here = batched.copies("cuda", contexts), batched.copies("cpu", contexts)
        self.plans_there = harness.copy_to("cuda", self.plans)

    def write(self, inputs: dict[str, Any]) -> None:
        write(self.there, self.plans_there[1], harness.copy_to("cuda", inputs))
        write(self.here, self.plans[1], inputs)
        assert state(self.there) == state(self.here)


def longer(inputs: dict[str, Any], length: int) -> dict[str, Any]:
    """The inputs with tensors of another length, at another address."""
    cut = {name: tensor.repeat(4)[:length] for name, tensor in inputs.items() if isinstance(tensor, torch.Tensor)}
    return {**inputs, **cut}


def test_flat_inputs_of_any_length_dtype_and_address() -> None:
    both = Both()
    inputs = batched.step_of(0)[2]
    held = []
    for length in (231, 231, 40, 900, 231, 1):
        cut = longer(inputs, length)
        both.write(cut)
        held.append(torch.zeros(length * 8, device="cuda"))
    narrow = {**inputs, "positions": inputs["positions"].to(torch.int32)}
    both.write(narrow)
    both.write(inputs)
    asserting = {
        **inputs,
        "enable_write_input_assert": True,
        "expected_input_tokens": inputs["input_ids"] + 1,
        "expected_input_positions": inputs["positions"],
    }
    both.write(asserting)
    both.write(inputs)
    both.write(asserting)
    assert int(both.here[0].violation_write_index) > 0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            {"positions": torch.zeros(230, dtype=torch.int64, device="cuda") if torch.cuda.is_available() else None},
            ArgumentError,
        ),
        ({"positions": torch.zeros(231, dtype=torch.int64)}, ArgumentError),
        ({"input_ids": torch.zeros(231)}, ArgumentTypeError),
        ({"out_cache_loc": [1, 2, 3]}, ArgumentTypeError),
        ({"enable_write_input_assert": True}, ArgumentError),
    ],
)
def test_what_was_refused_is_refused_after_a_good_launch(change: dict[str, Any], error: type[Exception]) -> None:
    both = Both()
    inputs = batched.step_of(0)[2]
    for _ in range(2):
        both.write(inputs)
    before = state(both.there)
    with pytest.raises(error):
        write(both.there, both.plans_there[1], {**harness.copy_to("cuda", inputs), **change})
    assert state(both.there) == before


def test_another_buffer_at_the_address_of_one_that_is_gone() -> None:
    inputs = batched.step_of(0)[2]
    for _ in range(4):
        both = Both()
        both.write(inputs)
        verify(both.there, both.plans_there[0])
        verify(both.here, both.plans[0])
        assert state(both.there) == state(both.here)
        del both


def test_nothing_is_kept_alive() -> None:
    inputs = batched.step_of(0)[2]
    both = Both()
    both.write(inputs)
    del both
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    both = Both()
    both.write(inputs)
    verify(both.there, both.plans_there[0])
    del both
    assert torch.cuda.memory_allocated() <= before


def test_a_plan_over_inputs_that_come_anew() -> None:
    def inputs(seed: int, requests: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        return {
            "req_pool_indices": torch.randint(0, 50, (requests,), generator=generator),
            "prefix_lens": torch.randint(-1, 18, (requests,), generator=generator),
            "extend_seq_lens": torch.randint(-1, 5, (requests,), generator=generator),
            "req_to_verify_expected_tokens_valid_lens": torch.randint(0, 18, (requests,), generator=generator),
        }

    fixed: dict[str, Any] = {
        "req_to_token": torch.randint(0, 9000, (48, 16), dtype=torch.int32),
        "req_to_verify_expected_tokens": torch.randint(0, 9000, (48, 16), dtype=torch.int32),
        "swa_window_size": 0,
        "full_to_swa_index_mapping": None,
        "verify_capacity": 9000,
        "kv_token_id_vs_position_offset": 1,
    }
    plans = (
        harness.VerifyPlan.allocate(verify_capacity=9000, device="cpu"),
        harness.WritePlan.allocate(write_req_capacity=300, device="cpu"),
    )
    for plan in plans:
        plan.zero_for_testing_()
    there = harness.copy_to("cuda", {**fixed, "verify_plan_out": plans[0], "write_plan_out": plans[1]})
    for seed, requests in enumerate([5, 5, 300, 5, 300, 1]):
        flat = inputs(seed, requests)
        for plan in (there["verify_plan_out"], plans[0]):
            for name in harness.VERIFY_ENTRIES:
                getattr(plan, name).fill_(-7)
        launch.launch_canary_plan_kernels(**there, **harness.copy_to("cuda", flat))
        launch.launch_canary_plan_kernels(**fixed, verify_plan_out=plans[0], write_plan_out=plans[1], **flat)
        for ours, theirs in zip((there["verify_plan_out"], there["write_plan_out"]), plans, strict=True):
            for field in batched.fields(theirs):
                kept = slice(0, requests) if field.name == "write_seed_slot_indices" else slice(None)
                assert torch.equal(getattr(ours, field.name).cpu()[kept], getattr(theirs, field.name)[kept]), field.name


def test_eager_launches_captured_and_launched_again_in_between() -> None:
    both = Both()
    inputs = batched.step_of(0)[2]
    there = harness.copy_to("cuda", inputs)
    for _ in range(2):
        both.write(inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        write(both.there, both.plans_there[1], there)
        verify(both.there, both.plans_there[0])
    both.write(longer(inputs, 100))
    for _ in range(3):
        graph.replay()
        write(both.here, both.plans[1], inputs)
        verify(both.here, both.plans[0])
        assert state(both.there) == state(both.here)
