"""Write on every engine against the oracle, and what verify then says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import harness
import hypothesis.strategies as st
import numpy as np
import pytest
import strategies
import torch
from hypothesis import given
from strategies import WriteCase, int32_cell, int64_tensor

from canary_numba.context import RealKvSource, VerifyOrWriteContext, ViolationAggregate, ViolationLog
from canary_numba.layout import CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import WritePlan


@given(case=strategies.write_cases(), aggregate=strategies.aggregates())
def test_any_write_is_as_the_oracle_says(engine: str, case: WriteCase, aggregate: ViolationAggregate | None) -> None:
    harness.check_write(engine, case.context, case.plan, case.inputs, aggregate=aggregate)


@given(case=strategies.write_cases_with_garbage_offsets(), aggregate=strategies.aggregates())
def test_garbage_offsets_are_cut_to_the_arrays(
    engine: str, case: WriteCase, aggregate: ViolationAggregate | None
) -> None:
    harness.check_write(engine, case.context, case.plan, case.inputs, aggregate=aggregate)


@st.composite
def step_cases(draw: st.DrawFn) -> tuple[VerifyOrWriteContext, list[list[int]], dict[str, Any]]:
    """Requests over disjoint slots, their tokens, and how many of them a first step writes."""
    num_slots = draw(st.integers(2, 12))
    context = draw(strategies.contexts(num_slots))
    order = list(draw(st.permutations(range(1, num_slots))))
    cut = draw(st.integers(0, len(order)))
    chains = [order[:cut], order[cut:]]
    tokens = [draw(st.lists(strategies.int32s, min_size=len(c), max_size=len(c))) for c in chains]
    first = [draw(st.integers(0, len(c))) for c in chains]
    return context, chains, {"tokens": tokens, "first": first}


@given(case=step_cases())
def test_plan_write_plan_verify_is_clean(engine: str, case: tuple[Any, list[list[int]], dict[str, Any]]) -> None:
    context, chains, parts = case
    width = max(len(chain) for chain in chains)
    table = torch.zeros((3, width), dtype=torch.int32)
    pool = torch.zeros((3, width), dtype=torch.int32)
    for row, (chain, tokens) in enumerate(zip(chains, parts["tokens"], strict=True), start=1):
        table[row, : len(chain)] = torch.tensor(chain, dtype=torch.int32)
        pool[row, : len(chain)] = torch.tensor(tokens, dtype=torch.int32)
    context = replace(
        context,
        violation_ring=torch.zeros((8, 8), dtype=torch.int64),
        violation_write_index=int32_cell(0),
        enable_chain_position_assert=int32_cell(1),
    )
    lengths = [len(chain) for chain in chains]
    for begin, end in (([0, 0], parts["first"]), (parts["first"], lengths), (lengths, lengths)):
        inputs = {
            "req_pool_indices": int64_tensor([1, 2]),
            "prefix_lens": int64_tensor(begin),
            "extend_seq_lens": int64_tensor([e - b for b, e in zip(begin, end, strict=True)]),
            "req_to_token": table,
            "swa_window_size": 0,
            "full_to_swa_index_mapping": None,
            "verify_capacity": 16,
            "req_to_verify_expected_tokens": pool,
            "req_to_verify_expected_tokens_valid_lens": int64_tensor(lengths),
            "kv_token_id_vs_position_offset": 0,
        }
        verify_plan, write_plan = harness.check_plan(engine, inputs, write_req_capacity=2)
        context = harness.run_verify(engine, context, verify_plan).context
        flat = [(r, p) for r in range(2) for p in range(begin[r], end[r])]
        written = {
            "input_ids": int64_tensor([parts["tokens"][r][p] for r, p in flat]),
            "positions": int64_tensor([p for _, p in flat]),
            "out_cache_loc": int64_tensor([chains[r][p] for r, p in flat]),
            "enable_write_input_assert": False,
            "expected_input_tokens": None,
            "expected_input_positions": None,
        }
        context = harness.run_write(engine, context, write_plan, written).context
    assert int(context.violation_write_index) == 0


def one_request(
    slots: list[int], *, seed: int = -1, positions: list[int] | None = None, **expected: torch.Tensor
) -> tuple[WritePlan, dict[str, Any]]:
    count = len(slots)
    plan = WritePlan(
        write_offsets=int64_tensor([0, count]),
        write_seed_slot_indices=int64_tensor([seed]),
        write_num_valid_reqs=int32_cell(1),
    )
    inputs = {
        "input_ids": torch.arange(100, 100 + count),
        "positions": torch.arange(count) if positions is None else int64_tensor(positions),
        "out_cache_loc": int64_tensor(slots),
        "enable_write_input_assert": bool(expected),
        "expected_input_tokens": None,
        "expected_input_positions": None,
        **expected,
    }
    return plan, inputs


def empty_context(num_slots: int) -> VerifyOrWriteContext:
    log = ViolationLog.allocate(ring_capacity=16, device="cpu")
    log.enable_chain_position_assert.fill_(1)
    return log.context(
        canary_buf=torch.zeros((num_slots, 32), dtype=torch.uint8), kernel_kind=CanaryLaunchTag.HEAD_K_FULL
    )


def test_the_input_row_stands_before_the_chain_row(engine: str) -> None:
    plan, inputs = one_request(
        [2, 3],
        seed=1,
        positions=[9, 20],
        expected_input_tokens=int64_tensor([100, 101]),
        expected_input_positions=int64_tensor([9, 10]),
    )
    _, after = harness.check_write(engine, empty_context(4), plan, inputs)
    rows = after.violation_ring[: int(after.violation_write_index)].tolist()
    # Seed slot 1 holds position 0. Entry 0: chain only. Entry 1: both asserts expect 10.
    assert [(row[1], row[6], row[7]) for row in rows] == [(2, 1, 16), (3, 10, 16), (3, 10, 16)]
    plan, inputs = one_request(
        [2],
        seed=1,
        positions=[9],
        expected_input_tokens=int64_tensor([55]),
        expected_input_positions=int64_tensor([8]),
    )
    _, after = harness.check_write(engine, empty_context(4), plan, inputs)
    assert [(row[4], row[6], row[7]) for row in after.violation_ring[:2].tolist()] == [(55, 8, 8 | 16), (100, 1, 16)]


@pytest.mark.parametrize("seed", [-1, 2])
def test_of_a_slot_written_twice_the_last_record_stays(engine: str, seed: int) -> None:
    plan, inputs = one_request([2, 3, 2, 2], seed=seed, positions=[1, 2, 3, 4])
    _, after = harness.check_write(engine, empty_context(5), plan, inputs)
    assert harness.records_of(after.canary_buf)[2][:2] == [103, 4]


def test_out_of_range_slots_are_reported_and_do_not_advance_the_chain(engine: str) -> None:
    plan, inputs = one_request([1, 5, 2**63 - 1, 2], seed=-1)
    outcome, after = harness.check_write(engine, empty_context(5), plan, inputs)
    assert [row[7] for row in outcome.rows] == [64, 64]
    with_gap = harness.records_of(after.canary_buf)
    plan, inputs = one_request([1, 2])
    inputs["input_ids"], inputs["positions"] = int64_tensor([100, 103]), int64_tensor([0, 3])
    _, after = harness.check_write(engine, empty_context(5), plan, inputs)
    assert with_gap == harness.records_of(after.canary_buf)


def test_an_out_of_range_seed_is_reported_once_and_starts_a_chain(engine: str) -> None:
    aggregate = ViolationAggregate.allocate(device="cpu")
    plan, inputs = one_request([1, 2], seed=5, positions=[7, 3])
    outcome, after = harness.check_write(engine, empty_context(5), plan, inputs, aggregate=aggregate)
    assert [row[7] for row in outcome.rows] == [128]
    plan, inputs = one_request([1, 2], seed=-1, positions=[7, 3])
    _, unseeded = harness.check_write(engine, empty_context(5), plan, inputs)
    assert torch.equal(after.canary_buf, unseeded.canary_buf)


def test_a_buffer_without_slots(engine: str) -> None:
    plan, inputs = one_request([0, -1, 3], seed=0)
    outcome, _ = harness.check_write(engine, empty_context(0), plan, inputs)
    assert [row[7] for row in outcome.rows] == [128, 64, 64]


@pytest.mark.parametrize("with_bytes", [False, True])
def test_requests_of_few_tokens_beside_long_ones(engine: str, with_bytes: bool) -> None:
    """As a server's batches are: hundreds of requests decode while some prefill."""
    random = np.random.default_rng(0)
    lengths = random.choice([0, 1, 1, 1, 2, 4, 5, 6, 40], size=400)
    lengths[[3, 250]] = 300
    total = int(lengths.sum())
    num_slots = total + 400
    slots = random.permutation(num_slots)[:total]
    slots[random.choice(total, 30, replace=False)] = random.choice([-1, -5, num_slots, 2**62], 30)
    context = empty_context(num_slots)
    if with_bytes:
        rows = torch.from_numpy(random.integers(0, 256, (num_slots, 48), dtype=np.uint8))
        source = RealKvSource(tensor=rows, page_size=1, num_bytes_per_token=48, read_bytes=48)
        context = replace(context, real_kv_sources=(source,), real_kv_hash_mode=RealKvHashMode.ALL)
    # The seeds are the slots that are not written to, and some that no pool has.
    seeds = np.setdiff1d(np.arange(num_slots), slots)[:400]
    seeds[random.choice(400, 40, replace=False)] = random.choice([-1, num_slots, 2**63 - 1], 40)
    stamped = torch.from_numpy(random.integers(0, 2**40, (num_slots, 4)))
    context.canary_buf.view(torch.int64).copy_(stamped)
    context.enable_chain_position_assert.fill_(1)
    before = np.where((seeds >= 0) & (seeds < num_slots), stamped[np.clip(seeds, 0, num_slots - 1), 1], 0)
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    positions = np.repeat(before + 1, lengths) + np.arange(total) - starts
    positions[random.choice(total, 20, replace=False)] += 1
    plan = WritePlan(
        write_offsets=torch.tensor([0, *lengths.tolist()]).cumsum(0),
        write_seed_slot_indices=torch.from_numpy(seeds),
        write_num_valid_reqs=int32_cell(400),
    )
    tokens = torch.from_numpy(random.integers(0, 2**31, total))
    expected = tokens.clone()
    expected[torch.from_numpy(random.choice(total, 20, replace=False))] += 1
    inputs = {
        "input_ids": tokens,
        "positions": torch.from_numpy(positions),
        "out_cache_loc": torch.from_numpy(slots),
        "enable_write_input_assert": True,
        "expected_input_tokens": expected,
        "expected_input_positions": torch.from_numpy(positions.copy()),
    }
    aggregate = ViolationAggregate.allocate(device="cpu")
    outcome, _ = harness.check_write(engine, context, plan, inputs, aggregate=aggregate)
    assert {bits for *_, bits in outcome.rows} >= {8, 16, 64, 128}


def test_long_chains_of_many_requests(engine: str) -> None:
    lengths = [0, 1, 300, 7, 64, 65]
    total = sum(lengths)
    context = empty_context(total + 1)
    context.violation_ring[:] = -1
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    plan = WritePlan(
        write_offsets=offsets,
        write_seed_slot_indices=torch.full((len(lengths),), -1),
        write_num_valid_reqs=int32_cell(len(lengths)),
    )
    generator = torch.Generator().manual_seed(5)
    inputs = {
        "input_ids": torch.randint(0, 150_000, (total,), generator=generator),
        "positions": torch.cat([torch.arange(length) for length in lengths]),
        "out_cache_loc": torch.randperm(total, generator=generator) + 1,
        "enable_write_input_assert": False,
        "expected_input_tokens": None,
        "expected_input_positions": None,
    }
    outcome, _ = harness.check_write(engine, context, plan, inputs)
    assert outcome.rows == []
    assert outcome.slot_run == total
