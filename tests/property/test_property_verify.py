"""Verify on every engine against the oracle, and damage with a known outcome."""

from __future__ import annotations

from dataclasses import replace

import harness
import hypothesis.strategies as st
import pytest
import strategies
import torch
from hypothesis import given
from strategies import VerifyCase, int64_tensor

from canary_numba.context import RealKvSource, VerifyOrWriteContext, ViolationAggregate, ViolationLog
from canary_numba.layout import CanaryLaunchTag, RealKvHashMode
from canary_numba.plans import VerifyPlan


@given(case=strategies.verify_cases(), aggregate=strategies.aggregates())
def test_any_verify_is_as_the_oracle_says(engine: str, case: VerifyCase, aggregate: ViolationAggregate | None) -> None:
    harness.check_verify(engine, case.context, case.plan, aggregate=aggregate, **case.options)


def chain_case(length: int, mode: RealKvHashMode = RealKvHashMode.ALL) -> tuple[VerifyOrWriteContext, VerifyPlan]:
    """One intact chain over slots ``length`` down to 1, and the plan that verifies it."""
    slots = list(range(length, 0, -1))
    tokens = [7 * position + 3 for position in range(length)]
    memory = torch.arange((length + 1) * 24, dtype=torch.int64).to(torch.uint8).view(length + 1, 24)
    source = RealKvSource(tensor=memory, page_size=1, num_bytes_per_token=24, read_bytes=20)
    context = ViolationLog.allocate(ring_capacity=16, device="cpu").context(
        canary_buf=torch.zeros((length + 1, 32), dtype=torch.uint8),
        kernel_kind=CanaryLaunchTag.TAIL_V_SWA,
        real_kv_sources=(source,),
        real_kv_hash_mode=mode,
    )
    strategies.stamp(context, [slots], tokens)
    plan = VerifyPlan(
        verify_slot_indices=int64_tensor(slots),
        verify_expected_tokens=int64_tensor(tokens),
        verify_expected_positions=torch.arange(length),
        verify_prev_slot_indices=int64_tensor([-1, *slots[:-1]]),
        verify_num_valid=strategies.int32_cell(length),
        enable=strategies.int32_cell(1),
    )
    return context, plan


def bits_by_entry(
    engine: str, context: VerifyOrWriteContext, plan: VerifyPlan, *, check_token: bool = True
) -> dict[int, int]:
    """Reason bits of each failing entry, read from the engine's ring."""
    harness.check_verify(engine, context, plan, check_token=check_token)
    after = harness.run_verify(engine, context, plan, check_token=check_token).context
    entry_of = {slot: entry for entry, slot in enumerate(plan.verify_slot_indices.tolist())}
    rows = after.violation_ring[: int(after.violation_write_index)].tolist()
    return {entry_of[row[1]]: row[7] for row in rows}


def test_an_intact_chain_is_clean(engine: str) -> None:
    assert bits_by_entry(engine, *chain_case(6)) == {}


@given(entry=st.integers(0, 5), change=st.integers(1, 2**64 - 1))
@pytest.mark.parametrize(
    ("field", "check_token", "own", "successor"),
    [
        pytest.param(0, False, 0, 1, id="token_unchecked"),
        pytest.param(0, True, 32, 1, id="token_checked"),
        pytest.param(1, True, 2, 1, id="position"),
        pytest.param(2, True, 1, 1, id="prev_hash"),
        pytest.param(3, True, 4, 0, id="real_kv_hash"),
    ],
)
def test_one_changed_field(
    engine: str, field: int, check_token: bool, own: int, successor: int, entry: int, change: int
) -> None:
    context, plan = chain_case(6)
    slot = int(plan.verify_slot_indices[entry])
    context.canary_buf.view(torch.int64)[slot, field] ^= change - 2**64 if change >= 2**63 else change
    expected = {entry: own, entry + 1: successor if entry < 5 else 0}
    found = bits_by_entry(engine, context, plan, check_token=check_token)
    assert found == {index: bits for index, bits in expected.items() if bits}


@given(entry=st.integers(0, 5), byte=st.integers(0, 23), change=st.integers(1, 255))
@pytest.mark.parametrize(("mode", "read"), [(RealKvHashMode.ALL, 20), (RealKvHashMode.PARTIAL, 16)])
def test_one_changed_kv_byte(engine: str, mode: RealKvHashMode, read: int, entry: int, byte: int, change: int) -> None:
    context, plan = chain_case(6, mode)
    context.real_kv_sources[0].tensor[int(plan.verify_slot_indices[entry]), byte] ^= change
    assert bits_by_entry(engine, context, plan) == ({entry: 4} if byte < read else {})


@given(
    name=st.sampled_from(["verify_slot_indices", "verify_expected_positions", "verify_prev_slot_indices"]),
    entry=st.integers(0, 5),
    value=st.integers(-1, 8) | strategies.int64s,
)
def test_one_changed_plan_entry(engine: str, name: str, entry: int, value: int) -> None:
    context, plan = chain_case(6)
    getattr(plan, name)[entry] = value
    harness.check_verify(engine, context, plan)


@given(
    failing=st.integers(0, 9),
    capacity=st.integers(0, 12),
    index=st.integers(-3, 14) | st.sampled_from([2**31 - 1, 2**31 - 3, -(2**31)]),
)
def test_the_ring_fills_once(engine: str, failing: int, capacity: int, index: int) -> None:
    context, plan = chain_case(9)
    plan.verify_expected_positions[:failing] += 100
    ring = torch.full((capacity, 8), -4, dtype=torch.int64)
    context = replace(context, violation_ring=ring, violation_write_index=strategies.int32_cell(index))
    outcome = harness.check_verify(engine, context, plan, aggregate=ViolationAggregate.allocate(device="cpu"))
    assert len(outcome.rows) == failing


class TestZeroInitOkay:
    """A record of 32 zero bytes: damage by default, "never written" on request."""

    def case(self) -> tuple[VerifyOrWriteContext, VerifyPlan]:
        context, plan = chain_case(4)
        context.canary_buf[int(plan.verify_slot_indices[1])] = 0
        return context, plan

    def test_default(self, engine: str) -> None:
        assert bits_by_entry(engine, *self.case()) == {1: 1 | 2 | 4 | 32, 2: 1}

    def test_asked_for(self, engine: str) -> None:
        context, plan = self.case()
        aggregate = ViolationAggregate.allocate(device="cpu")
        outcome = harness.check_verify(engine, context, plan, aggregate=aggregate, zero_init_okay=True)
        after = harness.run_verify(engine, context, plan, aggregate=aggregate, zero_init_okay=True).aggregate
        assert [row[7] for row in outcome.rows] == [1]
        assert after is not None
        assert after.never_written.tolist() == [1 if tag == context.kernel_kind else 0 for tag in range(12)]

    def test_the_padding_slot_is_not_counted(self, engine: str) -> None:
        context, plan = self.case()
        plan.verify_slot_indices[3] = 0
        aggregate = ViolationAggregate.allocate(device="cpu")
        outcome = harness.check_verify(engine, context, plan, aggregate=aggregate, zero_init_okay=True)
        assert outcome.never_written == 1

    def test_one_other_byte_is_damage(self, engine: str) -> None:
        for byte in range(32):
            context, plan = self.case()
            context.canary_buf[int(plan.verify_slot_indices[1]), byte] = 1
            outcome = harness.check_verify(engine, context, plan, zero_init_okay=True)
            assert 1 in outcome.entries


def test_out_of_range_slots_report_and_touch_nothing(engine: str) -> None:
    context, plan = chain_case(5)
    for entry, slot in enumerate([6, 2**63 - 1, -1, -(2**63)]):
        plan.verify_slot_indices[entry] = slot
    plan.verify_prev_slot_indices[3] = 6
    plan.verify_prev_slot_indices[4] = 2**62
    outcome = harness.check_verify(engine, context, plan)
    assert [row[7] for row in outcome.rows] == [64, 64, 64, 64 | 128, 128]
    assert [row[2:4] for row in outcome.rows[:4]] == [(0, 0)] * 4


def test_a_buffer_without_slots(engine: str) -> None:
    context, plan = chain_case(3)
    context = replace(context, canary_buf=torch.zeros((0, 32), dtype=torch.uint8))
    outcome = harness.check_verify(engine, context, plan)
    assert [row[7] for row in outcome.rows] == [64, 64 | 128, 64 | 128]
