"""Every kernel in the simulator against the oracle: any arguments, few examples."""

from __future__ import annotations

from typing import Any

import harness
import hypothesis
import hypothesis.strategies as st
import strategies
import strategies_plan
import torch
from hypothesis import given
from strategies import VerifyCase, WriteCase

from canary_numba import launch
from canary_numba.context import ViolationAggregate
from canary_numba.layout import RealKvHashMode

# A simulated thread is a Python thread: a launch takes some 10 ms or more.
few = hypothesis.settings(max_examples=25, deadline=None, derandomize=True)


@few
@given(case=strategies.verify_cases(), aggregate=strategies.aggregates())
def test_verify(engine: str, case: VerifyCase, aggregate: ViolationAggregate | None) -> None:
    harness.check_verify(engine, case.context, case.plan, aggregate=aggregate, **case.options)


@few
@given(case=strategies.write_cases(), aggregate=strategies.aggregates())
def test_write(engine: str, case: WriteCase, aggregate: ViolationAggregate | None) -> None:
    harness.check_write(engine, case.context, case.plan, case.inputs, aggregate=aggregate)


@few
@given(case=strategies.write_cases_with_garbage_offsets(), aggregate=strategies.aggregates())
def test_write_with_garbage_offsets(engine: str, case: WriteCase, aggregate: ViolationAggregate | None) -> None:
    harness.check_write(engine, case.context, case.plan, case.inputs, aggregate=aggregate)


@few
@given(case=strategies_plan.plan_cases())
def test_plan(engine: str, case: dict[str, Any]) -> None:
    inputs = {name: value for name, value in case.items() if name != "write_req_capacity"}
    harness.check_plan(engine, inputs, write_req_capacity=case["write_req_capacity"])


@few
@given(case=strategies_plan.scatter_cases())
def test_scatter(engine: str, case: dict[str, torch.Tensor]) -> None:
    pools = []
    for name in (engine, "cpu"):
        arguments = harness.copy_to("cpu", case)
        launch.launch_scatter_req_token_ids_kernel(**arguments, engine=name)
        pools.append(arguments["pool_out"].tolist())
    assert pools[0] == pools[1]


@few
@given(data=st.data(), mode=st.sampled_from([RealKvHashMode.PARTIAL, RealKvHashMode.ALL]))
def test_hash(engine: str, data: st.DataObject, mode: RealKvHashMode) -> None:
    num_slots = data.draw(st.integers(0, 9))
    sources = tuple(data.draw(st.lists(strategies.sources(num_slots), min_size=1, max_size=4)))
    slots = data.draw(st.lists(st.integers(-1, num_slots + 1) | strategies.int64s, max_size=40))
    before = data.draw(st.lists(strategies.int64s, min_size=len(slots), max_size=len(slots)))
    hashes = []
    for name in (engine, "reference"):
        out = strategies.int64_tensor(before)
        launch.launch_real_kv_hash_kernel(
            real_kv_sources=sources,
            real_kv_hash_mode=mode,
            slot_indices=strategies.int64_tensor(slots),
            hashes_out=out,
            engine=name,
        )
        hashes.append(out.tolist())
    assert hashes[0] == hashes[1]
