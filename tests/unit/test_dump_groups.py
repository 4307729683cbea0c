"""What the pools of a dump must be: groups, halves, record buffers and K/V sources."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dump_samples import ROWS, SLOTS, SWA_SLOTS, in_half, in_source, mutated, put, records, refused, sample

from canary_numba.dump import decode

HALF = "groups[0].halves.K"


def test_groups_must_be_there_and_differ() -> None:
    refused(put("groups", []), "groups", "at least one group", "got an empty list")
    refused(put("groups", {}), "groups", "expected list of at most 2, got a dict of 0")
    refused(put("groups.0", None), "groups[0]", "expected a dict, got None")
    refused(put("groups.1.kind", "FULL"), "groups[1].kind", "got a second FULL group")
    refused(put("groups.1.kind", "MLA"), "groups[1].kind", "expected 'FULL' or 'SWA', got 'MLA'")


def test_windows_belong_to_swa_groups() -> None:
    refused(put("groups.1.swa_window_size", -1), "groups[1].swa_window_size", "got int -1")
    refused(put("groups.0.swa_window_size", 4), "groups[0].swa_window_size", "expected int from 0 to 0, got int 4")
    refused(put("groups.1.full_to_swa_index_mapping", None), "groups[1].full_to_swa_index_mapping", "got None")


@pytest.mark.parametrize("value", [2, -1, True, 0.0, "0"])
def test_the_draft_offset_is_zero_or_one(value: Any) -> None:
    key = "kv_token_id_vs_position_offset"
    refused(put(f"groups.0.{key}", value), f"groups[0].{key}", "expected int from 0 to 1")


def test_halves_are_k_and_v() -> None:
    refused(
        put("groups.0.halves.k", {}), "groups[0].halves", "expected K and, if there is one, V, got a half named 'k'"
    )
    refused(
        put("groups.0.halves.V", sample()["groups"][1]["halves"]["K"]), "groups[0].halves.V", "as many slots as K, 9"
    )

    def without_buffers(mapping: dict[str, Any]) -> None:
        mapping["groups"][0]["halves"]["K"] = {"sources": []}

    refused(without_buffers, f"{HALF}.tail", "expected head or tail", "got neither")


@pytest.mark.parametrize(
    ("buffer", "got"),
    [
        (records(SLOTS, stride=24), "uint8 [9, 24]"),
        (records(SLOTS, stride=36), "uint8 [9, 36]"),
        (torch.zeros((SLOTS, 4), dtype=torch.int64), "int64 [9, 4]"),
        (torch.zeros(SLOTS * 32, dtype=torch.uint8), "uint8 [288]"),
        ([0] * 32, "a list of 32"),
    ],
)
def test_record_buffers_have_their_form(buffer: Any, got: str) -> None:
    for stage in ("head", "tail"):
        refused(in_half(stage, buffer), f"{HALF}.{stage}", f"stride >= 32, a multiple of 8], got {got}")


def test_head_and_tail_have_the_same_slots() -> None:
    refused(in_half("tail", records(SLOTS + 1)), f"{HALF}.tail", "as many slots as head, 9, got 10")


def test_source_hashes_have_a_column_for_each_source() -> None:
    expected = "expected int64 [num_slots=9, sources=2], got"
    refused(in_half("source_hashes", torch.zeros((SLOTS, 3), dtype=torch.int64)), f"{HALF}.source_hashes", expected)
    refused(in_half("source_hashes", torch.zeros((8, 2), dtype=torch.int64)), f"{HALF}.source_hashes", expected)


def test_source_hashes_outlive_their_sources() -> None:
    dump = decode(mutated(in_half("sources", ...)))
    assert dump.groups[0].halves["K"].source_hashes is not None


@pytest.mark.parametrize("name", ["page_size", "num_bytes_per_token", "read_bytes"])
@pytest.mark.parametrize("value", [0, -1, True, 2.0, None, 1 << 31, 10**30])
def test_source_sizes_are_positive_ints(name: str, value: Any) -> None:
    refused(in_source(name, value), f"{HALF}.sources[0].{name}", "expected int from 1 to")


def test_sources_are_wide_and_long_enough() -> None:
    key = f"{HALF}.sources[0]"
    refused(in_source("read_bytes", 13), f"{key}.read_bytes", "expected int from 1 to 12, got int 13")
    refused(in_source("num_bytes_per_token", 15), f"{key}.tensor", "page_size * num_bytes_per_token = 30", "28 bytes")
    refused(in_source("page_size", 3), f"{key}.tensor", "page_size * num_bytes_per_token = 36 bytes")
    short = sample()["groups"][0]["halves"]["K"]["sources"][0]["tensor"][:4]
    refused(in_source("tensor", short), f"{key}.tensor", "bytes for the 9 slots", "8 slots")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros((14, 5), dtype=torch.bfloat16).t(),
        torch.zeros((1, 14), dtype=torch.bfloat16).expand(5, 14),
        torch.zeros(100, dtype=torch.bfloat16).as_strided((5, 14), (7, 1)),
    ],
    ids=["columns", "expanded", "overlapping"],
)
def test_source_rows_are_contiguous_and_apart(tensor: torch.Tensor) -> None:
    refused(in_source("tensor", tensor), f"{HALF}.sources[0].tensor", "contiguous rows that do not overlap", "strides")


@pytest.mark.parametrize(
    ("tensor", "got"),
    [
        (torch.zeros((SLOTS, 2, 14)), "float32 [9, 2, 14]"),
        (torch.nn.Parameter(torch.zeros((SLOTS, 14))), "a Parameter"),
        (torch.zeros((SLOTS, 14), requires_grad=True), "requires grad"),
        (torch.zeros((SLOTS, 14)).to_sparse(), "layout sparse_coo"),
        (torch.zeros((SLOTS, 14), device="meta"), "a tensor on meta"),
        (torch.zeros((SLOTS, 14), dtype=torch.complex64).conj(), "conjugation"),
        (torch.zeros((1, 1)).expand(1 << 30, 1 << 30), "in a storage of 4 bytes"),
        ("bytes", "got 'bytes'"),
    ],
)
def test_tensors_are_plain(tensor: Any, got: str) -> None:
    refused(in_source("tensor", tensor), f"{HALF}.sources[0].tensor", got)


def test_too_many_sources_are_refused() -> None:
    one = sample()["groups"][0]["halves"]["K"]["sources"][0]
    refused(in_half("sources", [one] * 5000), f"{HALF}.sources", "expected list of at most 4096, got a list of 5000")


def test_large_tensors_are_not_copied_to_close_their_gaps() -> None:
    slots = (1 << 23) + 1
    gappy = torch.empty((slots, 64), dtype=torch.uint8)[:, :32]
    mutation = put("groups.0.halves", {"K": {"tail": gappy}})
    refused(mutation, f"{HALF}.tail", "a contiguous, aligned tensor", "strides [64, 1], too large to copy")


def test_records_at_odd_addresses_are_moved_to_even_ones() -> None:
    odd = torch.zeros(SLOTS * 32 + 1, dtype=torch.uint8)[1:].reshape(SLOTS, 32)
    dump = decode(mutated(in_half("head", odd)))
    head = dump.groups[0].halves["K"].head
    assert head is not None
    assert head.data_ptr() % 8 == 0


def test_tables_and_sources_keep_their_row_strides() -> None:
    mapping = sample()
    table = torch.arange(ROWS * 10, dtype=torch.int32).reshape(ROWS, 10)[:, :6]
    pool = torch.zeros((5, 2, 14), dtype=torch.bfloat16)
    mapping["requests"]["req_to_token"] = table
    mapping["groups"][0]["halves"]["K"]["sources"][1]["tensor"] = pool[:, 1]
    dump = decode(mapping)
    assert dump.requests is not None
    assert dump.requests.req_to_token.data_ptr() == table.data_ptr()
    assert dump.groups[0].halves["K"].sources[1].tensor.data_ptr() == pool[:, 1].data_ptr()


def test_swa_slots_are_counted_apart() -> None:
    assert decode(sample()).groups[1].halves["K"].num_slots == SWA_SLOTS
