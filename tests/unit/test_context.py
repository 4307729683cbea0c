"""RealKvSource, ViolationLog, ViolationAggregate."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from canary_numba.context import NO_INDEX, RealKvSource, ViolationAggregate, ViolationLog
from canary_numba.errors import ArgumentError
from canary_numba.layout import CanaryLaunchTag, RealKvHashMode


def source(**changes: Any) -> RealKvSource:
    arguments = {
        "tensor": torch.zeros((3, 32), dtype=torch.uint8),
        "page_size": 2,
        "num_bytes_per_token": 16,
        "read_bytes": 12,
        **changes,
    }
    return RealKvSource(**arguments)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tensor": torch.zeros((0, 4), dtype=torch.uint8)},
        {"tensor": torch.zeros((3, 2, 8), dtype=torch.bfloat16)},
        {"tensor": torch.zeros((3, 40), dtype=torch.uint8)[:, :32]},
        {"num_bytes_per_token": 15, "read_bytes": 15},
    ],
)
def test_legal_sources(changes: dict[str, Any]) -> None:
    source(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"page_size": 0}, "page_size: expected >= 1, got 0"),
        ({"num_bytes_per_token": 0}, "num_bytes_per_token: expected >= 1, got 0"),
        ({"read_bytes": 0}, "read_bytes: expected 1 to num_bytes_per_token=16, got 0"),
        ({"read_bytes": 17}, "read_bytes: expected 1 to num_bytes_per_token=16, got 17"),
        ({"tensor": torch.zeros(32, dtype=torch.uint8)}, "tensor: expected at least 2-D, got shape [32]"),
        (
            {"num_bytes_per_token": 17},
            "tensor: expected rows of at least page_size * num_bytes_per_token = 34 bytes, "
            "got 32 (shape [3, 32], torch.uint8)",
        ),
        (
            {"tensor": torch.zeros((3, 15), dtype=torch.float16)},
            "tensor: expected rows of at least page_size * num_bytes_per_token = 32 bytes, "
            "got 30 (shape [3, 15], torch.float16)",
        ),
    ],
)
def test_illegal_sources_name_their_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        source(**changes)
    assert str(error.value) == f"RealKvSource.{message}"


def test_a_new_log_is_empty() -> None:
    log = ViolationLog.allocate(ring_capacity=3, device="cpu")
    assert log.violation_ring.tolist() == [[0] * 8] * 3
    assert log.violation_ring.dtype == torch.int64
    for name, dtype in (
        ("violation_write_index", torch.int32),
        ("slot_run_counter", torch.int64),
        ("kernel_run_counter", torch.int64),
        ("enable_chain_position_assert", torch.int32),
    ):
        tensor = getattr(log, name)
        assert (tensor.tolist(), tensor.dtype) == ([0], dtype)


def test_a_log_without_a_ring_is_legal_and_a_negative_one_not() -> None:
    assert list(ViolationLog.allocate(ring_capacity=0, device="cpu").violation_ring.shape) == [0, 8]
    with pytest.raises(ArgumentError, match=r"^ring_capacity: expected >= 0, got -1$"):
        ViolationLog.allocate(ring_capacity=-1, device="cpu")


@pytest.mark.parametrize(("index", "kept"), [(-5, 0), (0, 0), (2, 2), (3, 3), (2**31 - 1, 3)])
def test_rows_are_those_the_ring_holds(index: int, kept: int) -> None:
    log = ViolationLog.allocate(ring_capacity=3, device="cpu")
    log.violation_ring[:] = torch.arange(24).view(3, 8)
    log.violation_write_index.fill_(index)
    assert log.rows().tolist() == log.violation_ring[:kept].tolist()


def test_a_context_shares_the_tensors_of_its_log() -> None:
    log = ViolationLog.allocate(ring_capacity=3, device="cpu")
    buf = torch.zeros((2, 32), dtype=torch.uint8)
    context = log.context(canary_buf=buf, kernel_kind=CanaryLaunchTag.TAIL_K_SWA)
    assert context.canary_buf is buf
    assert context.kernel_kind is CanaryLaunchTag.TAIL_K_SWA
    assert (context.real_kv_sources, context.real_kv_hash_mode) == ((), RealKvHashMode.NONE)
    for name in (
        "violation_ring",
        "violation_write_index",
        "slot_run_counter",
        "kernel_run_counter",
        "enable_chain_position_assert",
    ):
        assert getattr(context, name) is getattr(log, name)


def test_the_parts_of_an_aggregate_are_views_of_its_table() -> None:
    aggregate = ViolationAggregate.allocate(device="cpu")
    assert aggregate.counts.tolist() == [[0] * 8] * 12
    assert aggregate.first_index.tolist() == [NO_INDEX] * 12
    assert aggregate.never_written.tolist() == [0] * 12
    aggregate.counts[3, 7] += 2
    aggregate.first_index[3] = 4
    aggregate.never_written[3] += 1
    assert aggregate.table[3].tolist() == [0, 0, 0, 0, 0, 0, 0, 2, 4, 1]
