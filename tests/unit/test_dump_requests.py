"""What a dump must say of requests: rows, lengths, names, tables and the ranges into them."""

from __future__ import annotations

import pytest
import torch
from dump_samples import BS, ROWS, int64, mutated, put, refused

from canary_numba.dump import decode


def test_unnamed_requests_are_named_after_their_original_row() -> None:
    mapping = mutated(put("requests.rids", ...))
    mapping["requests"]["req_pool_indices"] = int64(3, 99)
    dump = decode(mapping)
    assert dump.requests is not None
    assert dump.requests.rids == ("row 13", "row 99")


PER_REQUEST = ("prefix_lens", "extend_seq_lens", "expected_tokens_valid_lens", "committed_lens", "allocated_lens")


@pytest.mark.parametrize("name", PER_REQUEST)
def test_per_request_lengths_have_their_form(name: str) -> None:
    key = f"requests.{name}"
    refused(put(key, int64(1)), key, "expected int64 [bs=2], got int64 [1]")
    refused(put(key, torch.zeros(BS, dtype=torch.int32)), key, "expected int64 [bs=2], got int32 [2]")
    refused(put(key, [1, 2]), key, "expected int64 [bs=2], got a list of 2")
    refused(put(key, int64(1, -1)), key, "lengths from 0 to 2147483647, got -1 at index 1")
    refused(put(key, int64(1 << 31, 0)), key, "got 2147483648 at index 0")
    refused(put(key, int64(-(1 << 63), 0)), key, "got -9223372036854775808 at index 0")


def test_tables_have_their_form() -> None:
    expected = "requests.expected_tokens"
    refused(put("requests.req_to_token", torch.zeros((ROWS, 6))), "requests.req_to_token", "int32 [rows, width]")
    refused(put(expected, torch.zeros((3, 5), dtype=torch.int32)), expected, "int32 [rows=4, width], got int32 [3, 5]")
    refused(put("requests.row_ids", int64(1)), "requests.row_ids", "int64 [rows=4], got int64 [1]")
    refused(put("requests.req_pool_indices", int64().reshape(0, 1)), "requests.req_pool_indices", "int64 [bs]")


def test_a_million_requests_are_enough() -> None:
    many = torch.zeros((1 << 20) + 1, dtype=torch.int64)
    refused(put("requests.req_pool_indices", many), "requests.req_pool_indices", "at most 1048576 requests")


@pytest.mark.parametrize("name", ["rids", "extra_keys"])
def test_names_of_requests_are_one_text_each(name: str) -> None:
    key = f"requests.{name}"
    refused(put(key, ["a"]), key, "expected list of 2, got a list of 1")
    refused(put(key, ("a", "b")), key, "expected list of 2, got a tuple of 2")
    refused(put(key, ["a", 7]), f"{key}[1]", "got int 7")
    refused(put(key, ["a", "\ud800"]), f"{key}[1]", "str that UTF-8 can hold")
    refused(put(key, ["a", "b" * 4097]), f"{key}[1]", "at most 4096 characters", "(4097 characters)")


@pytest.mark.parametrize(("dotted", "total"), [("requests.kv_indices.indptr", 6), ("finished.indptr", 3)])
def test_indptr_never_decreases_and_stays_inside(dotted: str, total: int) -> None:
    refused(put(dotted, int64(0, 1)), dotted, "expected int64 [n+1=3], got int64 [2]")
    refused(
        put(dotted, int64(0, 2, 1)), dotted, f"bounds from 0 to {total} that never decrease, got 2 before 1 at index 1"
    )
    refused(put(dotted, int64(-1, 0, 1)), dotted, "got -1 at index 0")
    refused(put(dotted, int64(0, 0, total + 1)), dotted, f"got {total + 1} at index 2")
