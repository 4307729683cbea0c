"""Decode steps at fixed addresses, as SGLang captures them: on a GPU a CUDA graph, replayed over refilled inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sglang.kernels.ops.kv_canary import plan, plan_ref, verify, verify_ref, write, write_ref
from sglang.kernels.ops.kv_canary.consts import RealKvHashMode
from sglang.test.kernels.kv_canary import _canary_helpers as helpers
from sglang.test.kernels.kv_canary import _fixtures

REQUESTS, PADDING, LENGTH = 6, 2, 40
SLOTS = (REQUESTS + 1) * LENGTH


class Step:
    """The tensors of a decode step, which never move: plan, verify and write of one buffer, padding rows included."""

    def __init__(self, device: torch.device) -> None:
        rows, bs = REQUESTS + 1, REQUESTS + PADDING
        self.buffer = helpers.make_canary_buf(num_slots=SLOTS + 1, device=device)
        self.log = helpers.FakeViolationLog.allocate(capacity=1024, device=device)
        self.sources = _fixtures.make_real_kv_sources(count=2, num_slots=SLOTS + 1, page_size=4, device=device)
        self.table = torch.zeros((rows, LENGTH), dtype=torch.int32, device=device)
        self.known = torch.zeros((rows, LENGTH), dtype=torch.int32, device=device)
        # int64 all, as SGLang hands them over.
        names = ("rows", "prefix", "extend", "tokens", "positions", "slots")
        self.ints = {name: torch.zeros(bs, dtype=torch.int64, device=device) for name in names}
        self.verify_plan = verify.VerifyPlan.allocate(verify_capacity=REQUESTS * LENGTH, device=device)
        self.write_plan = write.WritePlan.allocate(write_req_capacity=bs, device=device)
        self.context = verify.VerifyOrWriteContext(
            canary_buf=self.buffer,
            kernel_kind=verify.CanaryLaunchTag.TAIL_K_FULL,
            violation_ring=self.log.ring,
            violation_write_index=self.log.write_index,
            slot_run_counter=self.log.slot_run_counter,
            kernel_run_counter=self.log.kernel_run_counter,
            real_kv_sources=self.sources,
            real_kv_hash_mode=RealKvHashMode.ALL,
            enable_chain_position_assert=self.log.enable_chain_position_assert,
        )

    def state(self) -> dict[str, Any]:
        """What the launches leave behind."""
        return {
            "records": self.buffer.tolist(),
            "rows": sorted(self.log.ring.tolist()),
            "violations": int(self.log.write_index),
            "slots": int(self.log.slot_run_counter),
            "launches": int(self.log.kernel_run_counter),
        }

    def run(self, planner: Callable[..., None], verifier: Callable[..., None], writer: Callable[..., None]) -> None:
        """Queue the three launches."""
        ints = self.ints
        planner(
            verify_plan_out=self.verify_plan,
            write_plan_out=self.write_plan,
            req_pool_indices=ints["rows"],
            prefix_lens=ints["prefix"],
            extend_seq_lens=ints["extend"],
            req_to_token=self.table,
            swa_window_size=0,
            full_to_swa_index_mapping=None,
            verify_capacity=REQUESTS * LENGTH,
            req_to_verify_expected_tokens=self.known,
            req_to_verify_expected_tokens_valid_lens=ints["prefix"],
            kv_token_id_vs_position_offset=0,
        )
        verifier(context=self.context, plan=self.verify_plan, check_verify_expected_token=True)
        writer(
            context=self.context,
            plan=self.write_plan,
            input_ids=ints["tokens"],
            positions=ints["positions"],
            out_cache_loc=ints["slots"],
            enable_write_input_assert=False,
            expected_input_tokens=None,
            expected_input_positions=None,
        )


def refills(steps: int) -> Iterator[Callable[[Step], None]]:
    """Make what fills the inputs of one decode step after the other; every fifth damages a record or a byte of K/V."""
    torch.manual_seed(0)
    slots = torch.randperm(SLOTS).to(torch.int32)[: REQUESTS * LENGTH].view(REQUESTS, LENGTH) + 1
    for step in range(steps):
        position = step % LENGTH
        tokens = torch.randint(0, 2**31 - 1, (REQUESTS,))
        memory = torch.randint(0, 256, (2, REQUESTS, 16), dtype=torch.uint8)
        victim = int(slots[step % REQUESTS, position // 2]) if step % 5 == 4 else None

        def refill(
            own: Step,
            position: int = position,
            tokens: torch.Tensor = tokens,
            memory: torch.Tensor = memory,
            victim: int | None = victim,
        ) -> None:
            device = own.buffer.device
            own.table[1:].copy_(slots)
            own.known[1:, position].copy_(tokens.to(torch.int32))
            new = slots[:, position].to(torch.int64)
            real = {
                "rows": torch.arange(1, REQUESTS + 1),
                "prefix": torch.full((REQUESTS,), position),
                "extend": torch.ones(REQUESTS, dtype=torch.int64),
                "tokens": tokens,
                "positions": torch.full((REQUESTS,), position),
                "slots": new,
            }
            for name, values in real.items():
                own.ints[name][:REQUESTS].copy_(values)
            for source, values in zip(own.sources, memory, strict=True):
                for slot, piece in zip(new.tolist(), values, strict=True):
                    source.tensor[slot // 4, slot % 4 * 16 : slot % 4 * 16 + 16].copy_(piece.to(device))
            if victim is not None:
                own.buffer[victim, position % 32] ^= 1
                own.sources[1].tensor[victim // 4, victim % 4 * 16] ^= 1

        yield refill


def recorded(own: Step, device: torch.device) -> Callable[[], None]:
    """Return what runs the launches that SGLang's modules hold now; on a GPU they are captured, on another stream."""

    def run() -> None:
        own.run(plan.launch_canary_plan_kernels, verify.launch_canary_verify_kernel, write.launch_canary_write_kernel)

    if device.type != "cuda":
        return run
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    own.buffer.zero_()
    for tensor in (own.log.ring, own.log.write_index, own.log.slot_run_counter, own.log.kernel_run_counter):
        tensor.zero_()
    return graph.replay


def compare(device: torch.device, steps: int, counts: Counter[str]) -> None:
    """Decode with ours and with SGLang's references, and compare what each step leaves."""
    ours, theirs = Step(device), Step(device)
    replay = recorded(ours, device)
    for number, refill in enumerate(refills(steps)):
        refill(ours)
        refill(theirs)
        replay()
        theirs.run(
            plan_ref.launch_canary_plan_kernels_torch_reference,
            verify_ref.launch_canary_verify_kernel_torch_reference,
            write_ref.launch_canary_write_kernel_torch_reference,
        )
        got, expected = ours.state(), theirs.state()
        for name, value in expected.items():
            assert got[name] == value, f"decode step {number}: {name} differs"
    assert expected["violations"] > 0, "decoding shows no violation"
    counts["graph replays" if device.type == "cuda" else "decode steps"] += steps
    counts["slots in decode steps"] += expected["slots"]
    counts["violations in decode steps"] += expected["violations"]
