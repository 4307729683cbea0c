"""Plan, scatter and the real-KV hash on every engine against the oracle."""

from __future__ import annotations

from typing import Any

import harness
import hypothesis.strategies as st
import naive
import pytest
import strategies
import strategies_plan
import torch
from hypothesis import example, given
from strategies import int64_tensor

from canary_numba import launch
from canary_numba.context import RealKvSource
from canary_numba.layout import SLOT_OUT_OF_RANGE, RealKvHashMode


@given(inputs=strategies_plan.plan_cases())
def test_any_plan_is_as_the_oracle_says(engine: str, inputs: dict[str, Any]) -> None:
    capacity = inputs.pop("write_req_capacity")
    harness.check_plan(engine, inputs, write_req_capacity=capacity)


def plan_inputs(**changes: Any) -> dict[str, Any]:
    return {
        "req_pool_indices": int64_tensor([1]),
        "prefix_lens": int64_tensor([2]),
        "extend_seq_lens": int64_tensor([1]),
        "req_to_token": torch.tensor([[0, 0, 0], [4, 5, 6]], dtype=torch.int32),
        "swa_window_size": 0,
        "full_to_swa_index_mapping": None,
        "verify_capacity": 8,
        "req_to_verify_expected_tokens": None,
        "req_to_verify_expected_tokens_valid_lens": None,
        "kv_token_id_vs_position_offset": 0,
        **changes,
    }


def entries(engine: str, **changes: Any) -> tuple[list[int], list[int], int]:
    """Slots, predecessors and seed of a plan of one request."""
    verify_plan, write_plan = harness.check_plan(engine, plan_inputs(**changes), write_req_capacity=1)
    count = int(verify_plan.verify_num_valid)
    return (
        verify_plan.verify_slot_indices[:count].tolist(),
        verify_plan.verify_prev_slot_indices[:count].tolist(),
        int(write_plan.write_seed_slot_indices[0]),
    )


def test_a_prefix_longer_than_the_table_gives_one_entry_past_it(engine: str) -> None:
    for prefix in (4, 2**62):
        slots, prevs, seed = entries(engine, prefix_lens=int64_tensor([prefix]))
        assert slots == [4, 5, 6, SLOT_OUT_OF_RANGE]
        assert prevs == [-1, 4, 5, 6]
        assert seed == SLOT_OUT_OF_RANGE


def test_a_row_outside_the_table_gives_out_of_range_slots(engine: str) -> None:
    for row in (-1, 2, 2**63 - 1):
        slots, prevs, seed = entries(engine, req_pool_indices=int64_tensor([row]))
        assert slots == [SLOT_OUT_OF_RANGE] * 2
        assert prevs == [-1, SLOT_OUT_OF_RANGE]
        assert seed == SLOT_OUT_OF_RANGE


def test_a_slot_outside_the_mapping_is_out_of_range(engine: str) -> None:
    slots, prevs, seed = entries(engine, full_to_swa_index_mapping=int64_tensor([0, 0, 0, 0, 9]))
    assert slots == [9, SLOT_OUT_OF_RANGE]
    assert prevs == [-1, 9]
    assert seed == SLOT_OUT_OF_RANGE


def scatter_case(*offsets: int) -> dict[str, torch.Tensor]:
    return {
        "flat_in": int64_tensor([5, 6, 7, 8]),
        "offsets": int64_tensor(list(offsets)),
        "req_pool_indices": int64_tensor([1]),
        "pool_out": torch.zeros((2, 3), dtype=torch.int32),
    }


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0)])
def test_empty_tables(engine: str, shape: tuple[int, int]) -> None:
    empty = torch.zeros(shape, dtype=torch.int32)
    pool = {
        "req_to_verify_expected_tokens": empty,
        "req_to_verify_expected_tokens_valid_lens": int64_tensor([3]),
    }
    assert entries(engine, req_to_token=empty, **pool)[0] == [SLOT_OUT_OF_RANGE] * min(2, shape[1] + 1)
    assert entries(engine, **pool)[0] == [4, 5]
    inputs = harness.copy_to(harness.device_of(engine), {**scatter_case(0, 4), "pool_out": empty})
    launch.launch_scatter_req_token_ids_kernel(engine=engine, **inputs)


def test_a_plan_that_just_fits_is_enabled(engine: str) -> None:
    for capacity, enabled in ((4, 1), (3, 1), (2, 0), (1, 0)):
        inputs = plan_inputs(prefix_lens=int64_tensor([3]), verify_capacity=capacity)
        verify_plan, _ = harness.check_plan(engine, inputs, write_req_capacity=1)
        assert int(verify_plan.enable) == enabled


def test_many_requests(engine: str) -> None:
    generator = torch.Generator().manual_seed(3)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    bs = 1500
    inputs = plan_inputs(
        req_pool_indices=draw(0, 41, bs),
        prefix_lens=draw(-1, 12, bs),
        extend_seq_lens=draw(-1, 5, bs),
        req_to_token=draw(-1, 64, 40, 10).to(torch.int32),
        swa_window_size=4,
        full_to_swa_index_mapping=draw(0, 32, 60),
        verify_capacity=bs * 4,
        req_to_verify_expected_tokens=draw(0, 1000, 40, 8).to(torch.int32),
        req_to_verify_expected_tokens_valid_lens=draw(0, 10, bs),
        kv_token_id_vs_position_offset=1,
    )
    verify_plan, _ = harness.check_plan(engine, inputs, write_req_capacity=bs)
    assert int(verify_plan.enable) == 1


@given(inputs=strategies_plan.scatter_cases())
@example(inputs=scatter_case(-1, 3))
@example(inputs=scatter_case(3, 6))
# A decreasing range whose length wraps around to a positive int64.
@example(inputs=scatter_case(1, -(2**63)))
def test_any_scatter_is_as_the_oracle_says(engine: str, inputs: dict[str, torch.Tensor]) -> None:
    expected = naive.scatter(
        flat=inputs["flat_in"].tolist(),
        offsets=inputs["offsets"].tolist(),
        rows=inputs["req_pool_indices"].tolist(),
        pool=inputs["pool_out"].tolist(),
    )
    inputs = harness.copy_to(harness.device_of(engine), inputs)
    launch.launch_scatter_req_token_ids_kernel(engine=engine, **inputs)
    assert inputs["pool_out"].tolist() == expected


@st.composite
def hash_cases(draw: st.DrawFn) -> dict[str, Any]:
    num_slots = draw(st.integers(0, 9))
    slots = draw(st.lists(st.integers(-1, num_slots + 3) | strategies.int64s, max_size=8))
    return {
        "real_kv_sources": tuple(draw(st.lists(strategies.sources(num_slots), min_size=1, max_size=4))),
        "real_kv_hash_mode": draw(st.sampled_from([RealKvHashMode.PARTIAL, RealKvHashMode.ALL])),
        "slot_indices": int64_tensor(slots),
        "hashes_out": int64_tensor(draw(st.lists(strategies.int64s, min_size=len(slots), max_size=len(slots)))),
    }


@given(inputs=hash_cases())
def test_any_real_kv_hash_is_as_the_oracle_says(engine: str, inputs: dict[str, Any]) -> None:
    sources = [harness.source_of(source) for source in inputs["real_kv_sources"]]
    pairs = zip(inputs["slot_indices"].tolist(), inputs["hashes_out"].tolist(), strict=True)
    expected = [naive.fold_sources(acc, sources, inputs["real_kv_hash_mode"], slot) for slot, acc in pairs]
    inputs = harness.copy_to(harness.device_of(engine), inputs)
    launch.launch_real_kv_hash_kernel(engine=engine, **inputs)
    assert inputs["hashes_out"].tolist() == expected


def test_hashing_sources_one_launch_after_another_is_hashing_them_at_once(engine: str) -> None:
    memory = torch.arange(240, dtype=torch.int64).to(torch.uint8)
    sources = tuple(
        RealKvSource(tensor=memory[i : i + 60].view(6, 10), page_size=2, num_bytes_per_token=5, read_bytes=5)
        for i in range(0, 180, 45)
    )
    device = harness.device_of(engine)
    sources = harness.copy_to(device, sources)
    slots = torch.arange(12, device=device)
    pieces, whole = torch.zeros_like(slots), torch.zeros_like(slots)

    def fold(some: tuple[RealKvSource, ...], hashes: torch.Tensor) -> None:
        launch.launch_real_kv_hash_kernel(
            real_kv_sources=some,
            real_kv_hash_mode=RealKvHashMode.ALL,
            slot_indices=slots,
            hashes_out=hashes,
            engine=engine,
        )

    for source in sources:
        fold((source,), pieces)
    fold(sources, whole)
    assert torch.equal(pieces, whole)
    assert len(set(whole.tolist())) == 12
