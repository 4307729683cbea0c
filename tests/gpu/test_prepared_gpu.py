"""Prepared launches on a GPU: captured once into a CUDA graph, replayed over refilled inputs; other streams; sizes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from typing import Any

import harness
import pytest
import torch

from canary_numba import launch
from canary_numba.context import RealKvSource, VerifyOrWriteContext, ViolationAggregate, ViolationLog
from canary_numba.layout import CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan, WritePlan
from canary_numba.prepared import PreparedPlan, PreparedVerify, PreparedWrite

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")]

REQUESTS = 9
LENGTH = 48
STEP = 3
SLOTS = REQUESTS * LENGTH + 1


@dataclass
class Step:
    """The tensors of one step of a small server: every request verifies its prefix and writes ``STEP`` tokens."""

    context: VerifyOrWriteContext
    aggregate: ViolationAggregate
    verify_plan: VerifyPlan
    write_plan: WritePlan
    plan_inputs: dict[str, Any]
    write_inputs: dict[str, Any]

    def eager(self) -> None:
        launch.launch_canary_plan_kernels(
            verify_plan_out=self.verify_plan, write_plan_out=self.write_plan, **self.plan_inputs
        )
        launch.launch_canary_write_kernel(
            context=self.context, plan=self.write_plan, aggregate_violations=self.aggregate, **self.write_inputs
        )
        launch.launch_canary_verify_kernel(
            context=self.context,
            plan=self.verify_plan,
            check_verify_expected_token=True,
            aggregate_violations=self.aggregate,
        )

    def prepare(self) -> list[Any]:
        return [
            PreparedPlan(verify_plan_out=self.verify_plan, write_plan_out=self.write_plan, **self.plan_inputs),
            PreparedWrite(
                context=self.context, plan=self.write_plan, aggregate_violations=self.aggregate, **self.write_inputs
            ),
            PreparedVerify(
                context=self.context,
                plan=self.verify_plan,
                check_verify_expected_token=True,
                aggregate_violations=self.aggregate,
            ),
        ]

    def refill(self, step: int) -> None:
        """Set the inputs of step ``step``, in place; every fourth step damages a byte and a record."""
        device = self.context.canary_buf.device
        begin = step * STEP % LENGTH
        order = torch.randperm(SLOTS - 1, generator=torch.Generator().manual_seed(step * STEP // LENGTH)) + 1
        table = order.to(torch.int32).view(REQUESTS, LENGTH)
        tokens = (torch.arange(REQUESTS * LENGTH, dtype=torch.int32) * 7 + step * STEP // LENGTH).view(REQUESTS, LENGTH)
        self.plan_inputs["req_to_token"][1:] = table.to(device)
        self.plan_inputs["prefix_lens"].fill_(begin)
        self.plan_inputs["extend_seq_lens"].fill_(STEP)
        self.plan_inputs["req_to_verify_expected_tokens"][1:] = tokens.to(device)
        self.plan_inputs["req_to_verify_expected_tokens_valid_lens"].fill_(begin)
        new = slice(begin, begin + STEP)
        self.write_inputs["input_ids"].copy_(tokens[:, new].reshape(-1))
        self.write_inputs["positions"].copy_(torch.arange(begin, begin + STEP).repeat(REQUESTS))
        self.write_inputs["out_cache_loc"].copy_(table[:, new].reshape(-1))
        if begin and step % 4 == 3:
            self.context.real_kv_sources[0].tensor[int(table[2, 0]), step % 64] += 1
            self.context.canary_buf[int(table[5, begin - 1]), step % 24] += 1

    def state(self) -> list[Any]:
        """Everything the launches leave, with ring rows in an order of their own."""
        context = self.context
        kept = min(int(context.violation_write_index), context.violation_ring.shape[0])
        entries = int(self.verify_plan.verify_num_valid)
        planned = [getattr(self.verify_plan, f.name).tolist()[:entries] for f in fields(self.verify_plan)]
        return [
            context.canary_buf.tolist(),
            sorted(context.violation_ring[:kept].tolist()),
            [int(context.violation_write_index), int(context.slot_run_counter), int(context.kernel_run_counter)],
            self.aggregate.table.tolist(),
            planned,
            [getattr(self.write_plan, f.name).tolist() for f in fields(self.write_plan)],
        ]


def make_step(device: str) -> Step:
    memory = torch.arange(SLOTS * 64, dtype=torch.int64).to(torch.uint8).view(SLOTS, 64).to(device)
    source = RealKvSource(tensor=memory, page_size=1, num_bytes_per_token=64, read_bytes=64)
    log = ViolationLog.allocate(ring_capacity=8192, device=device)
    log.enable_chain_position_assert.fill_(1)
    context = log.context(
        canary_buf=torch.zeros((SLOTS, 32), dtype=torch.uint8, device=device),
        kernel_kind=CanaryLaunchTag.HEAD_V_FULL,
        real_kv_sources=(source,),
        real_kv_hash_mode=RealKvHashMode.ALL,
    )

    def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    capacity = REQUESTS * LENGTH
    return Step(
        context=context,
        aggregate=ViolationAggregate.allocate(device=device),
        verify_plan=VerifyPlan.allocate(verify_capacity=capacity, device=device).zero_for_testing_(),
        write_plan=WritePlan.allocate(write_req_capacity=REQUESTS, device=device).zero_for_testing_(),
        plan_inputs={
            "req_pool_indices": torch.arange(1, REQUESTS + 1, device=device),
            "prefix_lens": zeros(REQUESTS),
            "extend_seq_lens": zeros(REQUESTS),
            "req_to_token": zeros(REQUESTS + 1, LENGTH, dtype=torch.int32),
            "swa_window_size": 0,
            "full_to_swa_index_mapping": None,
            "verify_capacity": capacity,
            "req_to_verify_expected_tokens": zeros(REQUESTS + 1, LENGTH, dtype=torch.int32),
            "req_to_verify_expected_tokens_valid_lens": zeros(REQUESTS),
            "kv_token_id_vs_position_offset": 0,
        },
        write_inputs={
            "input_ids": zeros(REQUESTS * STEP),
            "positions": zeros(REQUESTS * STEP),
            "out_cache_loc": zeros(REQUESTS * STEP),
            "enable_write_input_assert": False,
            "expected_input_tokens": None,
            "expected_input_positions": None,
        },
    )


def test_one_capture_replayed_100_times_equals_eager_launches() -> None:
    replayed, eager, on_cpu = make_step("cuda"), make_step("cuda"), make_step("cpu")
    launches = replayed.prepare()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for prepared in launches:
            prepared()
    assert int(replayed.context.kernel_run_counter) == 0, "a capture ran its launches"
    for step in range(100):
        for each in (replayed, eager, on_cpu):
            each.refill(step)
        graph.replay()
        eager.eager()
        on_cpu.eager()
        expected = on_cpu.state()
        assert replayed.state() == expected, f"step {step}"
        assert eager.state() == expected, f"step {step}"
    assert int(on_cpu.context.kernel_run_counter) == 200
    assert int(on_cpu.context.violation_write_index) > 0


def test_on_another_stream() -> None:
    """Inputs that the stream itself fills late: launches queued anywhere else would read the old ones."""
    prepared, on_cpu = make_step("cuda"), make_step("cpu")
    launches = prepared.prepare()
    wanted = make_step("cuda")
    wanted.refill(0)
    on_cpu.refill(0)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        for inputs, source in (
            (prepared.plan_inputs, wanted.plan_inputs),
            (prepared.write_inputs, wanted.write_inputs),
        ):
            for name, tensor in inputs.items():
                if isinstance(tensor, torch.Tensor):
                    tensor.copy_(source[name])
        for run in launches:
            run()
    stream.synchronize()
    on_cpu.eager()
    assert prepared.state() == on_cpu.state()


def test_a_call_neither_synchronises_nor_allocates() -> None:
    step = make_step("cuda")
    step.refill(0)
    launches = step.prepare()
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    try:
        with warnings.catch_warnings():
            # torch announces that this mode is a prototype.
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        for prepared in launches:
            prepared()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated


@pytest.mark.parametrize("requests", [1, 255, 256, 257, 65_537, 100_000])
def test_a_plan_of_many_requests(requests: int) -> None:
    generator = torch.Generator().manual_seed(requests)
    inputs = {
        "req_pool_indices": torch.randint(0, 500, (requests,), generator=generator),
        "prefix_lens": torch.randint(-1, 18, (requests,), generator=generator),
        "extend_seq_lens": torch.randint(-1, 5, (requests,), generator=generator),
        "req_to_token": torch.randint(0, 9000, (498, 16), generator=generator, dtype=torch.int32),
        "swa_window_size": 0,
        "full_to_swa_index_mapping": None,
        "verify_capacity": 18 * requests,
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": None,
        "kv_token_id_vs_position_offset": 0,
    }
    on_gpu, on_cpu = (harness.run_plan(name, inputs, write_req_capacity=requests + 1) for name in ("cuda", "cpu"))
    entries = int(on_cpu[0].verify_num_valid)
    assert int(on_gpu[0].verify_num_valid) == entries > 0 or requests == 1
    assert int(on_gpu[0].enable) == int(on_cpu[0].enable) == 1
    for name in harness.VERIFY_ENTRIES:
        assert torch.equal(getattr(on_gpu[0], name)[:entries], getattr(on_cpu[0], name)[:entries]), name
    assert torch.equal(on_gpu[1].write_offsets, on_cpu[1].write_offsets)
    seeds = [plan.write_seed_slot_indices[:requests] for plan in (on_gpu[1], on_cpu[1])]
    assert torch.equal(seeds[0], seeds[1])


@pytest.mark.parametrize("width", [0, 16, 24, 584, 1024])
def test_one_request_of_8192_tokens(width: int) -> None:
    tokens = 8192
    generator = torch.Generator().manual_seed(width)
    memory = torch.randint(0, 256, (tokens + 1, max(width, 1)), generator=generator, dtype=torch.uint8)
    source = RealKvSource(tensor=memory, page_size=1, num_bytes_per_token=max(width, 1), read_bytes=max(width, 1))
    context = ViolationLog.allocate(ring_capacity=16, device="cpu").context(
        canary_buf=torch.zeros((tokens + 1, 32), dtype=torch.uint8),
        kernel_kind=CanaryLaunchTag.TAIL_K_FULL,
        real_kv_sources=(source,) if width else (),
        real_kv_hash_mode=RealKvHashMode.ALL if width else RealKvHashMode.NONE,
    )
    plan = WritePlan(
        write_offsets=torch.tensor([0, tokens]),
        write_seed_slot_indices=torch.tensor([-1]),
        write_num_valid_reqs=torch.tensor([1], dtype=torch.int32),
    )
    inputs = {
        "input_ids": torch.randint(0, 1 << 40, (tokens,), generator=generator),
        "positions": torch.arange(tokens),
        "out_cache_loc": torch.randperm(tokens, generator=generator) + 1,
        "enable_write_input_assert": False,
        "expected_input_tokens": None,
        "expected_input_positions": None,
    }
    on_gpu, on_cpu = (harness.run_write(name, context, plan, inputs).context for name in ("cuda", "cpu"))
    assert torch.equal(on_gpu.canary_buf, on_cpu.canary_buf)
    assert int(on_gpu.slot_run_counter) == int(on_cpu.slot_run_counter) == tokens
    assert int(on_gpu.violation_write_index) == 0
