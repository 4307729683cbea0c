"""Running a launch on any engine and holding its outcome against the oracle in ``naive.py``.

A ``run_*`` function copies its arguments to the engine's device, launches, and returns copies on the CPU: the arguments
themselves never change. A ``check_*`` function runs an engine and compares everything it left with what naive.py says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import naive
import pytest
import torch
from golden import VERIFY_ENTRIES

from canary_numba import launch
from canary_numba.context import RealKvSource, VerifyOrWriteContext, ViolationAggregate
from canary_numba.engines import simulator_enabled
from canary_numba.plans import VerifyPlan, WritePlan

T = TypeVar("T")


def engine_params() -> list[Any]:
    """Every engine as a pytest parameter; those that cannot run here are skipped with a reason."""
    params = [pytest.param("reference"), pytest.param("cpu")]
    if simulator_enabled():
        return [*params, pytest.param("simulator", marks=pytest.mark.simulator)]
    no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
    return [*params, pytest.param("cuda", marks=[pytest.mark.gpu, no_gpu])]


def device_of(engine: str) -> str:
    return "cuda" if engine == "cuda" else "cpu"


def copy_to(device: str, value: T) -> T:
    """Copy tensors, and dataclasses and tuples of them, keeping every stride and every gap between rows."""
    if isinstance(value, torch.Tensor):
        item = value.element_size()
        whole = value.as_strided((value.untyped_storage().nbytes() // item,), (1,), 0).clone().to(device)
        return whole.as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, tuple):
        return tuple(copy_to(device, item) for item in value)
    if isinstance(value, dict):
        return {key: copy_to(device, item) for key, item in value.items()}
    if is_dataclass(value):
        return replace(value, **{f.name: copy_to(device, getattr(value, f.name)) for f in fields(value)})
    return value


@dataclass
class After:
    """What a launch left: copies, on the CPU, of the arguments it may have changed."""

    context: VerifyOrWriteContext
    aggregate: ViolationAggregate | None


def run_verify(
    engine: str,
    context: VerifyOrWriteContext,
    plan: VerifyPlan,
    *,
    check_token: bool = True,
    aggregate: ViolationAggregate | None = None,
    zero_init_okay: bool = False,
    real_kv_hashes: torch.Tensor | None = None,
) -> After:
    device = device_of(engine)
    context, aggregate = copy_to(device, context), copy_to(device, aggregate)
    launch.launch_canary_verify_kernel(
        context=context,
        plan=copy_to(device, plan),
        check_verify_expected_token=check_token,
        engine=engine,
        aggregate_violations=aggregate,
        zero_init_okay=zero_init_okay,
        real_kv_hashes=copy_to(device, real_kv_hashes),
    )
    return After(copy_to("cpu", context), copy_to("cpu", aggregate))


def run_write(
    engine: str,
    context: VerifyOrWriteContext,
    plan: WritePlan,
    inputs: dict[str, Any],
    *,
    aggregate: ViolationAggregate | None = None,
) -> After:
    device = device_of(engine)
    context, aggregate = copy_to(device, context), copy_to(device, aggregate)
    launch.launch_canary_write_kernel(
        context=context,
        plan=copy_to(device, plan),
        engine=engine,
        aggregate_violations=aggregate,
        **copy_to(device, inputs),
    )
    return After(copy_to("cpu", context), copy_to("cpu", aggregate))


def run_plan(
    engine: str, inputs: dict[str, Any], *, write_req_capacity: int, prefill: int = -777
) -> tuple[VerifyPlan, WritePlan]:
    """Plan into arrays that hold ``prefill`` wherever the engine leaves them alone."""
    device = device_of(engine)
    verify_plan = VerifyPlan.allocate(verify_capacity=inputs["verify_capacity"], device=device)
    write_plan = WritePlan.allocate(write_req_capacity=write_req_capacity, device=device)
    for plan in (verify_plan, write_plan):
        for f in fields(plan):
            getattr(plan, f.name).fill_(prefill)
    launch.launch_canary_plan_kernels(
        verify_plan_out=verify_plan, write_plan_out=write_plan, engine=engine, **copy_to(device, inputs)
    )
    return copy_to("cpu", verify_plan), copy_to("cpu", write_plan)


def records_of(canary_buf: torch.Tensor) -> list[naive.Record]:
    return canary_buf.view(torch.int64)[:, :4].tolist()


def source_of(source: RealKvSource) -> naive.Source:
    rows = [row.contiguous().flatten().view(torch.uint8).numpy().tobytes() for row in source.tensor.detach()]
    return naive.Source(rows, source.page_size, source.num_bytes_per_token, source.read_bytes)


def _common(context: VerifyOrWriteContext) -> dict[str, Any]:
    return {
        "records": records_of(context.canary_buf),
        "kind": int(context.kernel_kind),
        "sources": [source_of(source) for source in context.real_kv_sources],
        "mode": int(context.real_kv_hash_mode),
    }


def oracle_verify(
    context: VerifyOrWriteContext,
    plan: VerifyPlan,
    *,
    check_token: bool = True,
    zero_init_okay: bool = False,
    real_kv_hashes: torch.Tensor | None = None,
) -> naive.Outcome:
    slots, tokens, positions, prevs = (getattr(plan, name).tolist() for name in VERIFY_ENTRIES)
    return naive.verify(
        **_common(context),
        slots=slots,
        tokens=tokens,
        positions=positions,
        prevs=prevs,
        num_valid=int(plan.verify_num_valid),
        enable=int(plan.enable),
        check_token=check_token,
        zero_init_okay=zero_init_okay,
        real_kv_hashes=None if real_kv_hashes is None else real_kv_hashes.tolist(),
    )


def oracle_write(
    context: VerifyOrWriteContext, plan: WritePlan, inputs: dict[str, Any]
) -> tuple[naive.Outcome, list[naive.Record]]:
    common = _common(context)
    expected = inputs["expected_input_tokens"], inputs["expected_input_positions"]
    outcome = naive.write(
        **common,
        offsets=plan.write_offsets.tolist(),
        seeds=plan.write_seed_slot_indices.tolist(),
        num_valid_reqs=int(plan.write_num_valid_reqs),
        tokens=inputs["input_ids"].tolist(),
        positions=inputs["positions"].tolist(),
        slots=inputs["out_cache_loc"].tolist(),
        expected_tokens=None if expected[0] is None else expected[0].tolist(),
        expected_positions=None if expected[1] is None else expected[1].tolist(),
        assert_chain_position=int(context.enable_chain_position_assert) != 0,
    )
    return outcome, common["records"]


def oracle_plan(inputs: dict[str, Any], *, write_req_capacity: int) -> naive.Plan:
    def listed(name: str) -> Any:
        return None if inputs[name] is None else inputs[name].tolist()

    return naive.plan(
        rows=listed("req_pool_indices"),
        prefix_lens=listed("prefix_lens"),
        extend_lens=listed("extend_seq_lens"),
        table=listed("req_to_token"),
        width=inputs["req_to_token"].shape[1],
        window=inputs["swa_window_size"],
        mapping=listed("full_to_swa_index_mapping"),
        verify_capacity=inputs["verify_capacity"],
        write_capacity=write_req_capacity,
        pool=listed("req_to_verify_expected_tokens"),
        valid_lens=listed("req_to_verify_expected_tokens_valid_lens"),
        offset=inputs["kv_token_id_vs_position_offset"],
    )


def _int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def check_ring(before: VerifyOrWriteContext, after: VerifyOrWriteContext, rows: list[naive.Row]) -> None:
    """Check a ring after a launch that reported ``rows``, in any order: as many kept as fit, the rest untouched."""
    index, capacity = int(before.violation_write_index), before.violation_ring.shape[0]
    assert int(after.violation_write_index) == _int32(index + len(rows))
    places = [_int32(index + i) for i in range(len(rows))]
    kept = [place for place in places if 0 <= place < capacity]
    ring_before, ring_after = before.violation_ring.tolist(), after.violation_ring.tolist()
    excess = Counter(tuple(ring_after[place]) for place in kept) - Counter(rows)
    assert not excess, f"rows that should not be there: {list(excess)}\nexpected: {rows}"
    for place in set(range(capacity)) - set(kept):
        assert ring_after[place] == ring_before[place], f"ring row {place} was overwritten"


def check_log(before: VerifyOrWriteContext, after: VerifyOrWriteContext, outcome: naive.Outcome) -> None:
    """Check ring and counters."""
    check_ring(before, after, outcome.rows)
    assert int(after.slot_run_counter) == int(before.slot_run_counter) + outcome.slot_run
    assert int(after.kernel_run_counter) == int(before.kernel_run_counter) + 1
    assert torch.equal(after.enable_chain_position_assert, before.enable_chain_position_assert)


def check_aggregate(
    before: ViolationAggregate | None,
    after: ViolationAggregate | None,
    context: VerifyOrWriteContext,
    outcome: naive.Outcome,
) -> None:
    if before is None or after is None:
        return
    counts, first = naive.aggregate(outcome)
    expected = copy_to("cpu", before)
    kind = int(context.kernel_kind)
    expected.counts[kind] += torch.tensor(counts)
    expected.first_index[kind] = min(int(expected.first_index[kind]), first)
    expected.never_written[kind] += outcome.never_written
    assert after.table.tolist() == expected.table.tolist()


def check_verify(
    engine: str,
    context: VerifyOrWriteContext,
    plan: VerifyPlan,
    *,
    aggregate: ViolationAggregate | None = None,
    **options: Any,
) -> naive.Outcome:
    """Verify on ``engine``, compare with the oracle, return the oracle's outcome."""
    outcome = oracle_verify(context, plan, **options)
    after = run_verify(engine, context, plan, aggregate=aggregate, **options)
    check_log(context, after.context, outcome)
    check_aggregate(aggregate, after.aggregate, context, outcome)
    assert torch.equal(after.context.canary_buf, context.canary_buf), "verify changed the buffer"
    return outcome


def check_write(
    engine: str,
    context: VerifyOrWriteContext,
    plan: WritePlan,
    inputs: dict[str, Any],
    *,
    aggregate: ViolationAggregate | None = None,
) -> tuple[naive.Outcome, VerifyOrWriteContext]:
    """Write on ``engine``, compare with the oracle, return the oracle's outcome and the context as it is afterwards."""
    outcome, records = oracle_write(context, plan, inputs)
    after = run_write(engine, context, plan, inputs, aggregate=aggregate)
    check_log(context, after.context, outcome)
    check_aggregate(aggregate, after.aggregate, context, outcome)
    assert records_of(after.context.canary_buf) == records
    assert torch.equal(after.context.canary_buf[:, 32:], context.canary_buf[:, 32:]), "bytes past the record changed"
    return outcome, after.context


def check_plan(engine: str, inputs: dict[str, Any], *, write_req_capacity: int) -> tuple[VerifyPlan, WritePlan]:
    """Plan on ``engine``, compare with the oracle, return the engine's plans."""
    expected = oracle_plan(inputs, write_req_capacity=write_req_capacity)
    verify_plan, write_plan = run_plan(engine, inputs, write_req_capacity=write_req_capacity)
    bs = inputs["req_pool_indices"].shape[0]
    assert int(write_plan.write_num_valid_reqs) == bs
    assert write_plan.write_offsets.tolist() == expected.write_offsets
    assert write_plan.write_seed_slot_indices[:bs].tolist() == expected.seeds
    assert int(verify_plan.verify_num_valid) == expected.num_valid
    assert int(verify_plan.enable) == (expected.entries is not None)
    columns = [getattr(verify_plan, name) for name in VERIFY_ENTRIES]
    if expected.entries is None:
        assert all((column == -777).all() for column in columns), "an overflowing plan touched the verify arrays"
    else:
        entries = list(zip(*(column[: expected.num_valid].tolist() for column in columns), strict=True))
        assert entries == expected.entries
    return verify_plan, write_plan
