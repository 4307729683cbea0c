"""Every golden file on every engine, and on the oracle itself: SGLang's own reference decides."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import golden
import harness
import naive
import pytest
import torch
from golden import Golden

from canary_numba import compute_slot_hash, launch_real_kv_hash_kernel, splitmix64, splitmix64_mix3
from canary_numba.context import RealKvSource, VerifyOrWriteContext, ViolationLog
from canary_numba.layout import CANARY_CHAIN_ANCHOR, CanaryLaunchTag, RealKvHashMode

LOG_FIELDS = ("violation_write_index", "slot_run_counter", "kernel_run_counter")


def load(shared: Path, name: str, engine: str = "") -> Golden:
    data = golden.load(shared, name)
    if engine == "cuda" and not data.get("cuda_defined", 1):
        pytest.skip("only defined for the reference")
    return data


def check_log(data: Golden, before: VerifyOrWriteContext, after: VerifyOrWriteContext) -> None:
    for name in LOG_FIELDS:
        assert torch.equal(getattr(after, name), data[f"out_{name}"]), name
    harness.check_ring(before, after, [tuple(row) for row in data["out_all_rows"].tolist()])


def test_all_golden_files_are_there(shared: Path) -> None:
    assert Counter(path.stem.split("_")[0] for path in (shared / "golden").glob("*.pt")) == {
        "hash": 1,
        "pipeline": 5,
        "plan": 45,
        "verify": 45,
        "write": 46,
    }


@pytest.mark.parametrize("name", golden.golden_names("verify_"))
def test_verify(name: str, engine: str, shared: Path) -> None:
    data = load(shared, name, engine)
    context = golden.context_of(data)
    check_token = bool(data["check_verify_expected_token"])
    after = harness.run_verify(engine, context, golden.verify_plan_of(data), check_token=check_token).context
    check_log(data, context, after)
    assert torch.equal(after.canary_buf, data["in_canary_buf"])


@pytest.mark.parametrize("name", golden.golden_names("write_"))
def test_write(name: str, engine: str, shared: Path) -> None:
    data = load(shared, name, engine)
    context = golden.context_of(data)
    after = harness.run_write(engine, context, golden.write_plan_of(data), golden.write_inputs_of(data)).context
    check_log(data, context, after)
    assert torch.equal(after.canary_buf, data["out_canary_buf"])


@pytest.mark.parametrize("name", golden.golden_names("plan_"))
def test_plan(name: str, engine: str, shared: Path) -> None:
    data = load(shared, name, engine)
    verify_plan, write_plan = harness.run_plan(
        engine, golden.plan_inputs_of(data), write_req_capacity=data["write_req_capacity"]
    )
    for field in ("verify_num_valid", "enable"):
        assert torch.equal(getattr(verify_plan, field), data[f"out_{field}"]), field
    defined = int(data["out_verify_num_valid"]) if int(data["out_enable"]) else data["verify_capacity"]
    for field in golden.VERIFY_ENTRIES:
        assert torch.equal(getattr(verify_plan, field)[:defined], data[f"out_{field}"][:defined]), field
    assert torch.equal(write_plan.write_offsets, data["out_write_offsets"])
    assert torch.equal(write_plan.write_num_valid_reqs, data["out_write_num_valid_reqs"])
    bs = data["bs"]
    assert torch.equal(write_plan.write_seed_slot_indices[:bs], data["out_write_seed_slot_indices"][:bs])


@pytest.mark.parametrize("name", golden.golden_names("pipeline_"))
def test_pipeline(name: str, engine: str, shared: Path) -> None:
    data = load(shared, name)
    log = ViolationLog.allocate(ring_capacity=data["ring_capacity"], device="cpu")
    log.enable_chain_position_assert.fill_(1)
    context = log.context(
        canary_buf=torch.zeros((data["num_slots"], 32), dtype=torch.uint8),
        kernel_kind=CanaryLaunchTag(data["kernel_kind"]),
        real_kv_hash_mode=RealKvHashMode(data["real_kv_hash_mode"]),
    )
    for step in range(data["num_steps"]):
        prefix = f"step{step}_"
        verify_plan, write_plan = harness.run_plan(
            engine,
            {
                "req_pool_indices": data[f"{prefix}req_pool_indices"],
                "prefix_lens": data[f"{prefix}prefix_lens"],
                "extend_seq_lens": data[f"{prefix}extend_seq_lens"],
                "req_to_token": data[f"{prefix}req_to_token"],
                "swa_window_size": data["swa_window_size"],
                "full_to_swa_index_mapping": data.get("in_full_to_swa_index_mapping"),
                "verify_capacity": data["verify_capacity"],
                "req_to_verify_expected_tokens": data[f"{prefix}pool"],
                "req_to_verify_expected_tokens_valid_lens": data[f"{prefix}valid_lens"],
                "kv_token_id_vs_position_offset": 0,
            },
            write_req_capacity=data["write_req_capacity"],
        )
        assert torch.equal(verify_plan.verify_num_valid, data[f"{prefix}out_num_valid"])
        context = replace(context, real_kv_sources=golden.sources_of(data, prefix))
        context = harness.run_verify(engine, context, verify_plan).context
        inputs = {
            "input_ids": data[f"{prefix}input_ids"],
            "positions": data[f"{prefix}positions"],
            "out_cache_loc": data[f"{prefix}out_cache_loc"],
            "enable_write_input_assert": False,
            "expected_input_tokens": None,
            "expected_input_positions": None,
        }
        context = harness.run_write(engine, context, write_plan, inputs).context
        assert torch.equal(context.violation_write_index, data[f"{prefix}out_write_index"])
        assert torch.equal(context.slot_run_counter, data[f"{prefix}out_slot_run_counter"])
    assert torch.equal(context.canary_buf, data["out_canary_buf"])
    for field in LOG_FIELDS:
        assert torch.equal(getattr(context, field), data[f"out_{field}"]), field
    assert Counter(map(tuple, context.violation_ring.tolist())) == Counter(
        map(tuple, data["out_violation_ring"].tolist())
    )


class TestOracle:
    """naive.py, which decides in the property tests, against the same files."""

    @pytest.mark.parametrize("name", golden.golden_names("verify_"))
    def test_verify(self, name: str, shared: Path) -> None:
        data = load(shared, name)
        outcome = harness.oracle_verify(
            golden.context_of(data),
            golden.verify_plan_of(data),
            check_token=bool(data["check_verify_expected_token"]),
        )
        assert Counter(outcome.rows) == Counter(map(tuple, data["out_all_rows"].tolist()))
        assert outcome.slot_run == int(data["out_slot_run_counter"]) - int(data["in_slot_run_counter"])

    @pytest.mark.parametrize("name", golden.golden_names("write_"))
    def test_write(self, name: str, shared: Path) -> None:
        data = load(shared, name)
        outcome, records = harness.oracle_write(
            golden.context_of(data), golden.write_plan_of(data), golden.write_inputs_of(data)
        )
        assert Counter(outcome.rows) == Counter(map(tuple, data["out_all_rows"].tolist()))
        assert outcome.slot_run == int(data["out_slot_run_counter"]) - int(data["in_slot_run_counter"])
        assert records == harness.records_of(data["out_canary_buf"])

    @pytest.mark.parametrize("name", golden.golden_names("plan_"))
    def test_plan(self, name: str, shared: Path) -> None:
        data = load(shared, name)
        plan = harness.oracle_plan(golden.plan_inputs_of(data), write_req_capacity=data["write_req_capacity"])
        assert plan.num_valid == int(data["out_verify_num_valid"])
        assert (plan.entries is not None) == bool(data["out_enable"])
        if plan.entries is not None:
            columns = (data[f"out_{field}"][: plan.num_valid].tolist() for field in golden.VERIFY_ENTRIES)
            assert plan.entries == list(zip(*columns, strict=True))
        assert plan.write_offsets == data["out_write_offsets"].tolist()
        assert plan.seeds == data["out_write_seed_slot_indices"][: data["bs"]].tolist()


@pytest.fixture(scope="module")
def pins(shared: Path) -> Golden:
    return golden.load(shared, "hash_pins")


class TestHashPins:
    """hash_pins: mixers, one chain, byte folds."""

    def test_anchor(self, pins: Golden) -> None:
        assert pins["anchor"] == naive.signed(CANARY_CHAIN_ANCHOR)

    def test_splitmix64(self, pins: Golden) -> None:
        pairs = list(zip(pins["splitmix64_in"].tolist(), pins["splitmix64_out"].tolist(), strict=True))
        assert [naive.signed(splitmix64(x)) for x, _ in pairs] == [y for _, y in pairs]
        assert [naive.signed(naive.splitmix64(x)) for x, _ in pairs] == [y for _, y in pairs]

    def test_mix3(self, pins: Golden) -> None:
        expected = pins["mix3_out"].tolist()
        assert [naive.signed(splitmix64_mix3(*abc)) for abc in pins["mix3_in"].tolist()] == expected
        assert [naive.signed(naive.mix3(*abc)) for abc in pins["mix3_in"].tolist()] == expected

    def test_chain(self, pins: Golden, engine: str) -> None:
        tokens, positions, prev_hashes = (pins[f"chain_{name}"] for name in ("tokens", "positions", "prev_hashes"))
        count = tokens.shape[0]
        context = ViolationLog.allocate(ring_capacity=4, device="cpu").context(
            canary_buf=torch.zeros((count + 1, 32), dtype=torch.uint8), kernel_kind=CanaryLaunchTag.HEAD_K_FULL
        )
        plan = golden.write_plan_of(
            {
                "in_write_offsets": torch.tensor([0, count]),
                "in_write_seed_slot_indices": torch.tensor([-1]),
                "in_write_num_valid_reqs": torch.tensor([1], dtype=torch.int32),
            }
        )
        inputs = {
            "input_ids": tokens,
            "positions": positions,
            "out_cache_loc": torch.arange(1, count + 1),
            "enable_write_input_assert": False,
            "expected_input_tokens": None,
            "expected_input_positions": None,
        }
        words = harness.run_write(engine, context, plan, inputs).context.canary_buf.view(torch.int64)
        assert torch.equal(words[1:, 2], prev_hashes)
        assert [naive.signed(compute_slot_hash(words, slot)) for slot in range(1, count)] == prev_hashes[1:].tolist()

    @pytest.mark.parametrize("width", [16, 32, 128])
    def test_fold(self, pins: Golden, engine: str, width: int) -> None:
        source = RealKvSource(tensor=pins["fold_bytes"], page_size=1, num_bytes_per_token=width, read_bytes=width)
        # The pin is one source's fold before sources are combined, which mixes once more.
        folds = pins[f"fold_first{width}"].tolist()
        assert run_hash(engine, (source,), 24) == [naive.signed(naive.splitmix64(fold)) for fold in folds]

    @pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
    def test_multi_source(self, pins: Golden, engine: str, count: int) -> None:
        sources = tuple(
            RealKvSource(
                tensor=pins["fold_bytes"][:, 16 * j : 16 * j + 16],
                page_size=1,
                num_bytes_per_token=16,
                read_bytes=16,
            )
            for j in range(count)
        )
        expected = pins["multi_source_hash"][count].tolist()
        if count:
            assert run_hash(engine, sources, 24) == expected
        else:
            assert expected == [0] * 24


def run_hash(engine: str, sources: tuple[RealKvSource, ...], num_slots: int) -> list[int]:
    device = harness.device_of(engine)
    hashes = torch.zeros(num_slots, dtype=torch.int64, device=device)
    launch_real_kv_hash_kernel(
        real_kv_sources=harness.copy_to(device, sources),
        real_kv_hash_mode=RealKvHashMode.ALL,
        slot_indices=torch.arange(num_slots, device=device),
        hashes_out=hashes,
        engine=engine,
    )
    return hashes.tolist()
