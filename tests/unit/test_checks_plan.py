"""Every refusal of plan, scatter and the real-KV hash: its type, and a message that names the argument."""

from __future__ import annotations

import pytest
from refusals import I32, Change, given, refusal, source, within, zeros

from canary_numba.errors import ArgumentError, ArgumentTypeError, CanaryError
from canary_numba.layout import RealKvHashMode

PLAN_SCATTER_HASH: list[tuple[str, Change, type[CanaryError], str]] = [
    ("plan", given(swa_window_size=-1), ArgumentError, "swa_window_size: expected >= 0, got -1"),
    (
        "plan",
        given(swa_window_size=2, full_to_swa_index_mapping=None),
        ArgumentError,
        "full_to_swa_index_mapping: needed with swa_window_size=2",
    ),
    (
        "plan",
        given(kv_token_id_vs_position_offset=2),
        ArgumentError,
        "kv_token_id_vs_position_offset: expected 0 or 1, got 2",
    ),
    (
        "plan",
        given(verify_capacity=4),
        ArgumentError,
        "verify_capacity: expected 3, the length of verify_plan_out's arrays, got 4",
    ),
    (
        "plan",
        given(req_pool_indices=zeros(2, dtype=I32)),
        ArgumentTypeError,
        "req_pool_indices: expected torch.int64, got torch.int32",
    ),
    (
        "plan",
        given(req_pool_indices=zeros(3), prefix_lens=zeros(3), extend_seq_lens=zeros(3)),
        ArgumentError,
        "req_pool_indices: expected at most 2 requests, the write plan's, got 3",
    ),
    ("plan", given(prefix_lens=zeros(1)), ArgumentError, "prefix_lens: expected shape [2], got [1]"),
    ("plan", given(extend_seq_lens=zeros(3)), ArgumentError, "extend_seq_lens: expected shape [2], got [3]"),
    ("plan", given(req_to_token=zeros(3, 4)), ArgumentTypeError, "req_to_token: expected torch.int32, got"),
    (
        "plan",
        given(req_to_token=zeros(3, 8, dtype=I32)[:, ::2]),
        ArgumentError,
        "req_to_token: expected contiguous rows, got strides [8, 2]",
    ),
    (
        "plan",
        given(full_to_swa_index_mapping=zeros(6, dtype=I32)),
        ArgumentTypeError,
        "full_to_swa_index_mapping: expected torch.int64, got torch.int32",
    ),
    (
        "plan",
        given(req_to_verify_expected_tokens_valid_lens=None),
        ArgumentError,
        "req_to_verify_expected_tokens_valid_lens: needed with req_to_verify_expected_tokens",
    ),
    (
        "plan",
        given(req_to_verify_expected_tokens=zeros(3, 4)),
        ArgumentTypeError,
        "req_to_verify_expected_tokens: expected torch.int32, got torch.int64",
    ),
    (
        "plan",
        given(req_to_verify_expected_tokens_valid_lens=zeros(1)),
        ArgumentError,
        "req_to_verify_expected_tokens_valid_lens: expected shape [2], got [1]",
    ),
    (
        "plan",
        within("verify_plan_out", enable=zeros(1)),
        ArgumentTypeError,
        "plan.enable: expected torch.int32, got torch.int64",
    ),
    ("scatter", given(pool_out=None), ArgumentTypeError, "pool_out: expected a torch.Tensor, got NoneType"),
    ("scatter", given(pool_out=zeros(3, 4)), ArgumentTypeError, "pool_out: expected torch.int32, got torch.int64"),
    (
        "scatter",
        given(pool_out=zeros(4, 3, dtype=I32).T),
        ArgumentError,
        "pool_out: expected contiguous rows, got strides [1, 3]",
    ),
    ("scatter", given(flat_in=zeros(5, dtype=I32)), ArgumentTypeError, "flat_in: expected torch.int64, got"),
    ("scatter", given(offsets=zeros(2)), ArgumentError, "offsets: expected shape [3], got [2]"),
    ("scatter", given(req_pool_indices=zeros(2, 1)), ArgumentError, "req_pool_indices: expected shape [n], got [2, 1]"),
    ("hash", given(hashes_out=3), ArgumentTypeError, "hashes_out: expected a torch.Tensor, got int"),
    ("hash", given(hashes_out=zeros(2, dtype=I32)), ArgumentTypeError, "hashes_out: expected torch.int64, got"),
    ("hash", given(slot_indices=zeros(3)), ArgumentError, "slot_indices: expected shape [2], got [3]"),
    (
        "hash",
        given(real_kv_hash_mode=RealKvHashMode.NONE),
        ArgumentError,
        "real_kv_hash_mode: expected PARTIAL or ALL, got <RealKvHashMode.NONE: 0>",
    ),
    ("hash", given(real_kv_sources=()), ArgumentError, "real_kv_sources: expected at least one source, got none"),
    (
        "hash",
        given(real_kv_sources=(source(),) * 5),
        ArgumentError,
        "real_kv_sources: expected at most 4 sources in one launch, got 5",
    ),
]


@pytest.mark.parametrize(
    ("launcher", "change", "error", "message"), PLAN_SCATTER_HASH, ids=[message for *_, message in PLAN_SCATTER_HASH]
)
def test_refusals(launcher: str, change: Change, error: type[CanaryError], message: str) -> None:
    refusal(launcher, change, error, message)
