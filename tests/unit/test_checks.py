"""Every refusal of verify and write: its type, and a message that names the argument."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from refusals import I32, U8, Change, given, refusal, source, within, zeros

from canary_numba.errors import ArgumentError, ArgumentTypeError, CanaryError


def shifted_buffer() -> torch.Tensor:
    return zeros(4 * 32 + 8, dtype=U8)[1:129].view(4, 32)


CONTEXT: list[tuple[dict[str, Any], type[CanaryError], str]] = [
    ({"canary_buf": [[0]]}, ArgumentTypeError, "canary_buf: expected a torch.Tensor, got list"),
    ({"canary_buf": zeros(4, 32)}, ArgumentTypeError, "canary_buf: expected torch.uint8, got torch.int64"),
    ({"canary_buf": zeros(128, dtype=U8)}, ArgumentError, "canary_buf: expected shape [n, n], got [128]"),
    (
        {"canary_buf": zeros(4, 24, dtype=U8)},
        ArgumentError,
        "canary_buf: expected a slot stride of at least 32 bytes and a multiple of 8, got 24",
    ),
    (
        {"canary_buf": zeros(4, 36, dtype=U8)},
        ArgumentError,
        "canary_buf: expected a slot stride of at least 32 bytes and a multiple of 8, got 36",
    ),
    (
        {"canary_buf": zeros(4, 64, dtype=U8)[:, :32]},
        ArgumentError,
        "canary_buf: expected a contiguous tensor, got strides [64, 1]",
    ),
    ({"canary_buf": shifted_buffer()}, ArgumentError, "canary_buf: expected an 8-byte aligned address, got 0x"),
    ({"kernel_kind": 12}, ArgumentError, "kernel_kind: expected a CanaryLaunchTag (0 to 11), got 12"),
    ({"kernel_kind": -1}, ArgumentError, "kernel_kind: expected a CanaryLaunchTag (0 to 11), got -1"),
    ({"violation_ring": zeros(2, 7)}, ArgumentError, "violation_ring: expected shape [n, 8], got [2, 7]"),
    (
        {"violation_ring": zeros(2, 8, dtype=I32)},
        ArgumentTypeError,
        "violation_ring: expected torch.int64, got torch.int32",
    ),
    (
        {"violation_ring": zeros(2, 8, device="meta")},
        ArgumentError,
        "violation_ring: expected a tensor on cpu, as the others are, got one on meta",
    ),
    ({"violation_write_index": zeros(1)}, ArgumentTypeError, "violation_write_index: expected torch.int32, got"),
    (
        {"violation_write_index": zeros(2, dtype=I32)},
        ArgumentError,
        "violation_write_index: expected shape [1], got [2]",
    ),
    ({"slot_run_counter": zeros(1, dtype=I32)}, ArgumentTypeError, "slot_run_counter: expected torch.int64, got"),
    ({"kernel_run_counter": zeros(1, 1)}, ArgumentError, "kernel_run_counter: expected shape [1], got [1, 1]"),
    (
        {"enable_chain_position_assert": 1},
        ArgumentTypeError,
        "enable_chain_position_assert: expected a torch.Tensor, got int",
    ),
    ({"real_kv_hash_mode": 3}, ArgumentError, "real_kv_hash_mode: expected a RealKvHashMode (0 to 2), got 3"),
    (
        {"real_kv_sources": (source(),) * 5},
        ArgumentError,
        "real_kv_sources: expected at most 4 sources in one launch, got 5",
    ),
    (
        {"real_kv_sources": (source(), source(3))},
        ArgumentError,
        "real_kv_sources[1].tensor: expected bytes for all 4 slots of canary_buf, got 3 slots",
    ),
    (
        {"real_kv_sources": (source(tensor=zeros(4, 8, dtype=U8, device="meta")),)},
        ArgumentError,
        "real_kv_sources[0].tensor: expected a tensor on cpu, as the others are, got meta",
    ),
]

VERIFY_WRITE: list[tuple[str, Change, type[CanaryError], str]] = [
    (
        "verify",
        within("plan", verify_slot_indices=[1, 2, 3]),
        ArgumentTypeError,
        "plan.verify_slot_indices: expected a torch.Tensor, got list",
    ),
    (
        "write",
        within("plan", write_seed_slot_indices=None),
        ArgumentTypeError,
        "plan.write_seed_slot_indices: expected a torch.Tensor, got NoneType",
    ),
    (
        "verify",
        within("plan", verify_slot_indices=zeros(3, dtype=I32)),
        ArgumentTypeError,
        "plan.verify_slot_indices: expected torch.int64, got torch.int32",
    ),
    (
        "verify",
        within("plan", verify_slot_indices=zeros(6)[::2]),
        ArgumentError,
        "plan.verify_slot_indices: expected a contiguous tensor, got strides [2]",
    ),
    (
        "verify",
        within("plan", verify_expected_tokens=zeros(4)),
        ArgumentError,
        "plan.verify_expected_tokens: expected shape [3], got [4]",
    ),
    (
        "verify",
        within("plan", verify_expected_positions=zeros(2)),
        ArgumentError,
        "plan.verify_expected_positions: expected shape [3], got [2]",
    ),
    (
        "verify",
        within("plan", verify_prev_slot_indices=zeros(3, device="meta")),
        ArgumentError,
        "plan.verify_prev_slot_indices: expected a tensor on cpu, as the others are, got one on meta",
    ),
    (
        "verify",
        within("plan", verify_num_valid=zeros(1)),
        ArgumentTypeError,
        "plan.verify_num_valid: expected torch.int32, got torch.int64",
    ),
    ("verify", within("plan", enable=zeros(0, dtype=I32)), ArgumentError, "plan.enable: expected shape [1], got [0]"),
    (
        "verify",
        given(aggregate_violations=SimpleNamespace(table=zeros(12, 8))),
        ArgumentError,
        "aggregate_violations.table: expected shape [12, 10], got [12, 8]",
    ),
    (
        "verify",
        given(real_kv_hashes=zeros(3)),
        ArgumentError,
        "real_kv_hashes: expected shape [4], got [3]",
    ),
    (
        "write",
        within("plan", write_offsets=zeros(2)),
        ArgumentError,
        "plan.write_offsets: expected shape [3], got [2]",
    ),
    (
        "write",
        within("plan", write_seed_slot_indices=[1, 2]),
        ArgumentTypeError,
        "plan.write_seed_slot_indices: expected a torch.Tensor, got list",
    ),
    (
        "write",
        within("plan", write_num_valid_reqs=zeros(1)),
        ArgumentTypeError,
        "plan.write_num_valid_reqs: expected torch.int32, got torch.int64",
    ),
    (
        "write",
        given(expected_input_tokens=None),
        ArgumentError,
        "expected_input_tokens, expected_input_positions: both are needed with enable_write_input_assert=True",
    ),
    (
        "write",
        given(enable_write_input_assert=False, expected_input_tokens=None),
        ArgumentError,
        "expected_input_tokens, expected_input_positions: expected None with enable_write_input_assert=False",
    ),
    (
        "write",
        given(input_ids=zeros(5, dtype=torch.float32)),
        ArgumentTypeError,
        "input_ids: expected torch.int64 or torch.int32, got torch.float32",
    ),
    ("write", given(positions=zeros(4)), ArgumentError, "positions: expected shape [5], got [4]"),
    ("write", given(out_cache_loc=zeros(5, 1)), ArgumentError, "out_cache_loc: expected shape [n], got [5, 1]"),
    (
        "write",
        given(expected_input_tokens=zeros(6)),
        ArgumentError,
        "expected_input_tokens: expected shape [5], got [6]",
    ),
    (
        "write",
        given(expected_input_positions=zeros(5, dtype=U8)),
        ArgumentTypeError,
        "expected_input_positions: expected torch.int64 or torch.int32, got torch.uint8",
    ),
    (
        "write",
        given(aggregate_violations=SimpleNamespace(table=zeros(12, 10, dtype=I32))),
        ArgumentTypeError,
        "aggregate_violations.table: expected torch.int64, got torch.int32",
    ),
]


@pytest.mark.parametrize("launcher", ["verify", "write"])
@pytest.mark.parametrize(("changes", "error", "message"), CONTEXT, ids=[message for *_, message in CONTEXT])
def test_context_refusals(launcher: str, changes: dict[str, Any], error: type[CanaryError], message: str) -> None:
    refusal(launcher, within("context", **changes), error, message)


@pytest.mark.parametrize(
    ("launcher", "change", "error", "message"), VERIFY_WRITE, ids=[message for *_, message in VERIFY_WRITE]
)
def test_refusals(launcher: str, change: Change, error: type[CanaryError], message: str) -> None:
    arguments = refusal(launcher, change, error, message)
    if "context" in arguments:
        assert int(arguments["context"].kernel_run_counter) == 0, "a refused launch counted itself"
