"""What random cases seldom reach: every path of the K/V fold, long requests, many requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import harness
import numpy as np
import pytest
import strategies
import torch
from strategies import int32_cell, int64_tensor

from canary_numba.context import RealKvSource, VerifyOrWriteContext, ViolationAggregate, ViolationLog
from canary_numba.engines.cuda.fold_shapes import SourceShape
from canary_numba.layout import CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan, WritePlan
from canary_numba.sources import flatten_source

SLOTS = 41
"""More than a warp, and not a multiple of one."""


def source(width: int, *, read: int | None = None, page_size: int = 1, gap: int = 0, start: int = 0) -> RealKvSource:
    """Random bytes for ``SLOTS`` slots, ``start`` bytes after an aligned address, ``gap`` bytes between rows."""
    rows = -(-SLOTS // page_size)
    row_stride = page_size * width + gap
    rng = np.random.default_rng(width * 31 + page_size)
    # int64 words make the allocation's address a multiple of 16 on every torch build.
    words = torch.zeros((start + rows * row_stride) // 8 + 4, dtype=torch.int64)
    memory = words.view(torch.uint8)
    memory.numpy()[:] = rng.integers(0, 256, memory.shape[0])
    tensor = memory.as_strided((rows, page_size * width), (row_stride, 1), start)
    return RealKvSource(tensor=tensor, page_size=page_size, num_bytes_per_token=width, read_bytes=read or width)


# For each source: bytes of alignment, and whether the fold goes through tiles (full ones, words in the rest).
FOLDS = {
    "pairs_full_tiles": (source(512), 16, (2, 0)),
    "pairs_full_tile_and_rest": (source(176), 16, (1, 6)),
    "pairs_small_tile": (source(32), 16, (1, 0)),
    "pairs_small_tile_and_rest": (source(48), 16, (1, 2)),
    "pairs_partly_read": (source(192, read=144), 16, (1, 2)),
    "pairs_in_pages": (source(64, page_size=16), 16, (1, 0)),
    "pairs_in_pages_with_gaps": (source(80, page_size=4, gap=32), 16, (1, 2)),
    "words_full_tiles": (source(264), 8, (1, 1)),
    "words_from_odd_word": (source(128, start=8), 8, (1, 0)),
    "words_in_pages": (source(24, page_size=3), 8, (0, 3)),
    "words_partly_read": (source(256, read=200), 8, (1, 9)),
    "direct_word": (source(8), 8, None),
    "direct_pair": (source(16), 16, None),
    "direct_pair_of_a_wide_row": (source(64, read=16), 16, None),
    "direct_words": (source(40, read=16), 8, None),
    "bytes_odd_width": (source(13), 1, None),
    "bytes_one": (source(1), 1, None),
    "bytes_from_odd_address": (source(32, start=3), 1, None),
    "bytes_partly_read": (source(601, read=587), 1, None),
    "bytes_in_pages": (source(9, page_size=8, gap=5), 1, None),
}


def chained_case(
    sources: tuple[RealKvSource, ...], mode: RealKvHashMode = RealKvHashMode.ALL
) -> tuple[VerifyOrWriteContext, VerifyPlan]:
    """One chain over all slots but 0, last first, and the plan that verifies it; two records and one slot damaged."""
    slots = list(range(SLOTS - 1, 0, -1))
    context = ViolationLog.allocate(ring_capacity=64, device="cpu").context(
        canary_buf=torch.zeros((SLOTS, 32), dtype=torch.uint8),
        kernel_kind=CanaryLaunchTag.SWEEP_V_FULL,
        real_kv_sources=sources,
        real_kv_hash_mode=mode,
    )
    strategies.stamp(context, [slots], list(range(len(slots))))
    context.canary_buf.view(torch.int64)[7, 3] ^= 1 << 40
    context.canary_buf.view(torch.int64)[30, 2] ^= 1
    plan = VerifyPlan(
        verify_slot_indices=int64_tensor(slots),
        verify_expected_tokens=torch.arange(len(slots)),
        verify_expected_positions=torch.arange(len(slots)),
        verify_prev_slot_indices=int64_tensor([-1, *slots[:-1]]),
        verify_num_valid=int32_cell(len(slots)),
        enable=int32_cell(1),
    )
    return context, plan


class TestFolds:
    @pytest.mark.parametrize("name", FOLDS)
    def test_the_case_is_what_its_name_says(self, name: str) -> None:
        used, alignment, tiles = FOLDS[name]
        flat = flatten_source(used, RealKvHashMode.ALL)
        shape = SourceShape.of(flat)
        assert flat.alignment == alignment
        assert (tiles is None) == (shape.tile_width == 0)
        if tiles is not None:
            assert divmod(shape.read_size, shape.tile_width) == tiles

    @pytest.mark.parametrize("name", FOLDS)
    def test_verify(self, name: str, engine: str) -> None:
        context, plan = chained_case((FOLDS[name][0],))
        outcome = harness.check_verify(engine, context, plan)
        assert sorted(row[7] for row in outcome.rows) == [1, 1, 4]

    @pytest.mark.parametrize("name", FOLDS)
    def test_write(self, name: str, engine: str) -> None:
        context, plan = chained_case((FOLDS[name][0],))
        order = plan.verify_slot_indices
        write_plan, inputs = requests([order[:35].tolist(), order[35:].tolist()])
        outcome, _ = harness.check_write(engine, context, write_plan, inputs)
        assert outcome.rows == []

    def test_partial(self, engine: str) -> None:
        for name in ("pairs_full_tiles", "words_full_tiles", "bytes_odd_width", "pairs_in_pages"):
            harness.check_verify(engine, *chained_case((FOLDS[name][0],), RealKvHashMode.PARTIAL))

    @pytest.mark.parametrize(
        "names",
        [
            ("pairs_full_tiles", "pairs_in_pages", "words_full_tiles", "bytes_odd_width"),
            ("direct_pair", "bytes_one", "pairs_small_tile_and_rest", "direct_word"),
            ("words_from_odd_word", "pairs_full_tile_and_rest", "words_partly_read"),
        ],
    )
    def test_several_sources(self, names: tuple[str, ...], engine: str) -> None:
        context, plan = chained_case(tuple(FOLDS[name][0] for name in names))
        assert len(harness.check_verify(engine, context, plan).rows) == 3
        write_plan, inputs = requests([plan.verify_slot_indices.tolist()])
        harness.check_write(engine, context, write_plan, inputs)

    def test_records_that_are_not_paired(self, engine: str) -> None:
        context, plan = chained_case((FOLDS["pairs_small_tile"][0],))
        wide = torch.zeros((SLOTS, 40), dtype=torch.uint8)
        wide[:, :32] = context.canary_buf
        context = replace(context, canary_buf=wide)
        assert len(harness.check_verify(engine, context, plan).rows) == 3
        write_plan, inputs = requests([plan.verify_slot_indices.tolist()])
        harness.check_write(engine, context, write_plan, inputs)

    def test_hashes_given_by_slot(self, engine: str) -> None:
        context, plan = chained_case((FOLDS["pairs_small_tile"][0],))
        hashes = context.canary_buf.view(torch.int64)[:, 3].clone()
        hashes[12] ^= 1
        outcome = harness.check_verify(engine, context, plan, real_kv_hashes=hashes)
        assert [row[1] for row in outcome.rows if row[7] == 4] == [12]


def requests(
    chains: list[list[int]], seeds: list[int] | None = None, offsets: list[int] | None = None
) -> tuple[WritePlan, dict[str, Any]]:
    """Write arguments for these slots, positions from 0 in each request."""
    flat = [slot for chain in chains for slot in chain]
    ends = np.cumsum([0, *map(len, chains)]).tolist() if offsets is None else offsets
    count = len(ends) - 1
    plan = WritePlan(
        write_offsets=int64_tensor(ends),
        write_seed_slot_indices=int64_tensor([-1] * count if seeds is None else seeds),
        write_num_valid_reqs=int32_cell(count),
    )
    inputs = {
        "input_ids": torch.arange(900, 900 + len(flat)),
        "positions": int64_tensor([position for chain in chains for position in range(len(chain))]),
        "out_cache_loc": int64_tensor(flat),
        "enable_write_input_assert": False,
        "expected_input_tokens": None,
        "expected_input_positions": None,
    }
    return plan, inputs


def write_context(num_slots: int, *, sources: tuple[RealKvSource, ...] = ()) -> VerifyOrWriteContext:
    log = ViolationLog.allocate(ring_capacity=64, device="cpu")
    log.enable_chain_position_assert.fill_(1)
    return log.context(
        canary_buf=torch.full((num_slots, 32), 0x5A, dtype=torch.uint8),
        kernel_kind=CanaryLaunchTag.TAIL_K_SWA,
        real_kv_sources=sources,
        real_kv_hash_mode=RealKvHashMode.ALL if sources else RealKvHashMode.NONE,
    )


class TestLongRequests:
    """More than 32 tokens: several batches of one warp, plain ones and ones with something special in them."""

    @pytest.mark.parametrize("length", [31, 32, 33, 63, 64, 65, 100])
    def test_plain(self, length: int, engine: str) -> None:
        plan, inputs = requests([list(range(length, 0, -1))])
        outcome, _ = harness.check_write(engine, write_context(length + 1), plan, inputs)
        assert outcome.rows == []

    @pytest.mark.parametrize("at", [0, 31, 32, 40, 63, 64, 99])
    @pytest.mark.parametrize("special", ["skipped", "outside", "far_outside", "repeated", "gap", "token", "position"])
    def test_one_special_entry(self, at: int, special: str, engine: str) -> None:
        length = 100
        plan, inputs = requests([list(range(1, length + 1))], seeds=[length + 1])
        context = write_context(length + 2)
        context.canary_buf.view(torch.int64)[length + 1] = int64_tensor([5, 9, 77, 0])
        inputs["positions"] = torch.arange(10, 10 + length)
        slots = inputs["out_cache_loc"]
        if special in ("token", "position"):
            inputs["enable_write_input_assert"] = True
            inputs["expected_input_tokens"] = inputs["input_ids"].clone()
            inputs["expected_input_positions"] = inputs["positions"].clone()
            inputs[f"expected_input_{special}s"][at] -= 1
        elif special == "gap":
            inputs["positions"][at:] += 1
        else:
            slots[at] = {"skipped": -1, "outside": length + 2, "far_outside": 2**63 - 1, "repeated": 50}[special]
        aggregate = ViolationAggregate.allocate(device="cpu")
        outcome, _ = harness.check_write(engine, context, plan, inputs, aggregate=aggregate)
        silent = special == "repeated" or (special == "skipped" and at == length - 1)
        assert (outcome.rows == []) == silent

    def test_with_sources(self, engine: str) -> None:
        plan, inputs = requests([list(range(1, 36)), list(range(36, SLOTS))])
        inputs["out_cache_loc"][[3, 33]] = int64_tensor([-5, SLOTS])
        sources = (FOLDS["pairs_in_pages"][0], FOLDS["bytes_odd_width"][0])
        outcome, _ = harness.check_write(engine, write_context(SLOTS, sources=sources), plan, inputs)
        assert 64 in [row[7] for row in outcome.rows]


class TestRequestsOfFewTokens:
    """A lane each, whatever stands between them."""

    @pytest.mark.parametrize("with_source", [False, True])
    def test_beside_longer_ones(self, with_source: bool, engine: str) -> None:
        lengths = [1, 0, 4, 5, 1, 2, 0, 7, *[0, 0, 0, 1] * 7, 6]
        slots = iter(range(1, SLOTS))
        chains = [[next(slots) for _ in range(length)] for length in lengths]
        seeds = [[-1, SLOTS - 1, SLOTS, -3, 2**63 - 1][i % 5] for i in range(len(lengths))]
        plan, inputs = requests(chains, seeds=seeds)
        inputs["out_cache_loc"][[2, 20, 30]] = int64_tensor([-1, SLOTS + 9, 2**63 - 1])
        inputs["positions"][4] += 1
        inputs["enable_write_input_assert"] = True
        inputs["expected_input_tokens"] = inputs["input_ids"] + (torch.arange(len(inputs["input_ids"])) % 9 == 0)
        inputs["expected_input_positions"] = inputs["positions"].clone()
        sources = (FOLDS["pairs_small_tile"][0],) if with_source else ()
        context = write_context(SLOTS, sources=sources)
        aggregate = ViolationAggregate.allocate(device="cpu")
        outcome, _ = harness.check_write(engine, context, plan, inputs, aggregate=aggregate)
        assert {row[7] for row in outcome.rows} >= {8, 64, 128}


class TestOddOffsets:
    @pytest.mark.parametrize(
        "offsets",
        [[0, 20, 20, 40], [25, 40, 10, 20], [40, 0, 10], [-7, 3, 2**62], [0, 5, 3, 3], [2**62, -1, 4], [10, 30]],
    )
    @pytest.mark.parametrize("with_source", [False, True])
    def test_ranges(self, offsets: list[int], with_source: bool, engine: str) -> None:
        sources = (FOLDS["pairs_small_tile"][0],) if with_source else ()
        plan, inputs = requests([list(range(1, SLOTS))], offsets=offsets)
        plan = replace(plan, write_seed_slot_indices=int64_tensor([-1] * (len(offsets) - 1)))
        harness.check_write(engine, write_context(SLOTS, sources=sources), plan, inputs)

    def test_seeds_out_of_range(self, engine: str) -> None:
        plan, inputs = requests([[1, 2], [3], [], [4, 5]], seeds=[SLOTS, 2**63 - 1, SLOTS, -(2**63)])
        outcome, _ = harness.check_write(engine, write_context(SLOTS), plan, inputs)
        assert [row[7] for row in outcome.rows].count(128) == 2


def plan_inputs(bs: int, width: int, capacity: int) -> dict[str, Any]:
    rng = np.random.default_rng(bs)
    return {
        "req_pool_indices": torch.arange(bs) % 7,
        "prefix_lens": int64_tensor(rng.integers(-1, width + 2, bs).tolist()),
        "extend_seq_lens": int64_tensor(rng.integers(-1, 4, bs).tolist()),
        "req_to_token": torch.from_numpy(rng.integers(0, 50, (6, width)).astype(np.int32)),
        "swa_window_size": 3,
        "full_to_swa_index_mapping": int64_tensor(rng.integers(-1, 60, 45).tolist()),
        "verify_capacity": capacity,
        "req_to_verify_expected_tokens": torch.from_numpy(rng.integers(0, 9, (7, width)).astype(np.int32)),
        "req_to_verify_expected_tokens_valid_lens": int64_tensor(rng.integers(0, width, bs).tolist()),
        "kv_token_id_vs_position_offset": 1,
    }


@pytest.mark.parametrize("bs", [0, 1, 31, 32, 33, 70])
def test_plan_of_many_requests(bs: int, engine: str) -> None:
    harness.check_plan(engine, plan_inputs(bs, 6, 300), write_req_capacity=bs + 3)


def test_plan_with_more_requests_than_chunks_of_one_scan(engine: str) -> None:
    """Past 32 chunks of 32 simulated threads a chunk is several scans."""
    harness.check_plan(engine, plan_inputs(1100, 4, 5000), write_req_capacity=1100)


def test_plan_that_does_not_fit(engine: str) -> None:
    harness.check_plan(engine, plan_inputs(70, 6, 20), write_req_capacity=70)
